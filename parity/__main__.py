"""`python -m parity`: run, compare, bench, doctor."""

import sys

from parity.commands import parity
from parity.cli import main

if __name__ == "__main__":
    sys.exit(main(parity))
