"""`python -m parity`: run, compare, bench, doctor."""

import sys

from parity.cli import main
from parity.commands import parity

if __name__ == "__main__":
    sys.exit(main(parity))
