"""The file in which a run keeps its configuration: its name, and how it is told apart."""

from pathlib import Path

CONFIG = "config.yaml"  # in the folder of a run, or of a trace
# How a file begins that a run has written: any other is a user's own, and never replaced.
HEADER = "# The whole configuration of a run. --config reads it, and flags win over it.\n"


def written_by_run(path: Path) -> bool:
    """Return whether a run has written a file of this name.

    Raises:
      OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER.encode()
