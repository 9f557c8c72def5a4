"""The one exception for whatever a user gave that cannot be used."""


class InputError(Exception):
    """Bad use or bad input; the message is one line for the user.

    The line names the file, line or field, the value seen and what is allowed. A command line
    prints it after `error: ` and exits with `exit_status`.
    """

    exit_status = 2

    def __init__(self, message: str) -> None:
        # a file name may hold a line break, and the promise is one line
        super().__init__(message.replace("\r", "\\r").replace("\n", "\\n"))
