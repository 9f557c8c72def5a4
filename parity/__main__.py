"""The command `parity`, also `python -m parity`."""

import os
from typing import NoReturn

# Before NumPy is loaded: the oracle shares the cores with the trainings that it checks, and
# threads of linear algebra that wait for each other on busy cores slow it down several times.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> NoReturn:
    """Run the command line and end the process with its status."""
    from parity.base.process import keep_freed_memory, stop_in_one_line

    stop_in_one_line()
    from parity.cli import command_line

    keep_freed_memory()
    command_line.load_plugins_or_exit()
    from parity.cli.commands import parity

    command_line.run_and_exit(parity)


if __name__ == "__main__":
    main()
