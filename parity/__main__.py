"""The command `parity`, also `python -m parity`."""

import os
import sys

# Before NumPy is loaded: the oracle shares the cores with the trainings that it checks, and
# threads of linear algebra that wait for each other on busy cores slow it down several times.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> int:
    """Run the command line and return its exit status."""
    from parity.base.process import keep_freed_memory, stop_in_one_line

    stop_in_one_line()
    from parity.cli import command_line

    keep_freed_memory()
    command_line.load_plugins_or_exit()
    from parity.cli.commands import parity

    return command_line.main(parity)


if __name__ == "__main__":
    sys.exit(main())
