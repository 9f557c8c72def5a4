"""`python -m parity`: run, compare, report, bench, profile, faults, sweep, losses, doctor."""

import os
import sys

# Before NumPy is loaded: the oracle shares the cores with the sides it referees, and threads of
# linear algebra that wait for each other on busy cores make it several times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if __name__ == "__main__":
    from parity.base.allocator import keep_freed_memory
    from parity.cli.command_line import main
    from parity.commands.commands import parity

    keep_freed_memory()
    sys.exit(main(parity))
