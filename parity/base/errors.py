"""The ways in which a command of this project fails on purpose.

Any exception with an `exit_status` ends a command with its message on one line and that status;
everything else is a defect of the project and keeps its traceback.
"""

from parity.base.text import escaped

# The status of a command that hit a defect: Python's own 1 would mean a mismatch was found.
DEFECT_STATUS = 70


class UsageError(Exception):
    """Bad use or bad input, explained in one line.

    The message names the file, line or field, the value seen and what is allowed. Control
    characters in it, which a file name may hold, are escaped.
    """

    exit_status = 2

    def __init__(self, message: str):
        super().__init__(escaped(message))


class MismatchError(Exception):
    """The sides do not match, and the command needs sides that do."""

    exit_status = 1


class NumericFailure(Exception):
    """A NaN or an infinity: the message names the step, the replica and the tensor."""

    exit_status = 3


class RankLost(Exception):
    """Another process of the training is gone, silent or never came; the message names it."""

    exit_status = 4


class OutputLost(Exception):
    """Standard output is closed, or its disk is full; `EX_IOERR` of sysexits.h."""

    exit_status = 74

    def __init__(self, reason: str):
        super().__init__(f"standard output cannot be written: {reason}")


class SideFailed(Exception):
    """A side's process crashed or was killed, without an error message of its own.

    `exit_status` is the process's, or 128 plus the number of the signal that killed it.
    """

    def __init__(self, message: str, exit_status: int):
        super().__init__(message)
        self.exit_status = exit_status


class Interrupted(Exception):
    """A signal stopped the work after a checkpoint was written.

    `exit_status` is 128 plus the signal's number: 130 for SIGINT, 143 for SIGTERM.
    """

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_status = 128 + signal_number
