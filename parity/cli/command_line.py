"""Command lines: paths among their arguments, and what becomes of a command's errors."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from parity.base.errors import DEFECT_STATUS, UsageError
from parity.base.files import reason
from parity.base.machine import out_of_memory
from parity.base.plugins import load_plugins
from parity.base.process import nothing_left_to_stop, stop_as_python_does
from parity.base.standard_streams import final_status, guard_standard_streams
from parity.base.text import one_line

_LONGEST_NAME = 255  # bytes of a file's name
_SHOWN = 40  # characters of a longer one
# Errors of disks, rights and limits, at any moment; all others are a defect of this project.
_OF_THE_SYSTEM = frozenset(
    getattr(errno, f"E{name}")
    for name in (
        *("IO", "ACCES", "PERM", "NAMETOOLONG", "LOOP", "NOSPC", "DQUOT", "ROFS", "FBIG"),
        *("MFILE", "NFILE", "NOTDIR", "ISDIR", "STALE"),
    )
)


def print_error(error: BaseException, *, debug: bool) -> int:
    """Print an error that a command raised on purpose as one line, and return its exit status.

    Raises:
      The error itself, if it has no exit status: it is then a defect of this project.
    """
    status = getattr(error, "exit_status", None)
    if status is None:
        raise error
    if debug:
        traceback.print_exception(error)
    print(f"error: {one_line(str(error))}", file=sys.stderr, flush=True)
    return int(status)


def main(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; bad use prints one line on stderr.

    A defect of this project prints its traceback and returns DEFECT_STATUS. A verdict that
    standard output does not take returns the status of OutputLost.
    """
    guard_standard_streams()
    stop_as_python_does()
    return final_status(_run(command, sys.argv[1:] if arguments is None else list(arguments)))


def run_and_exit(command: click.Command) -> NoReturn:
    """Run a command line and end the process with its status."""
    status = main(command)
    nothing_left_to_stop()
    sys.exit(status)


def _run(command: click.Command, words: list[str]) -> int:
    try:
        names = ["-h", "--help"]
        # without standalone mode, click returns what the command returned: its exit status
        return command.main(args=words, standalone_mode=False, help_option_names=names) or 0
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # click ends with 1, a mismatch's
            traceback.print_exception(ended.__context__)
            return DEFECT_STATUS
        raise
    except click.exceptions.Abort:
        print("error: interrupted", file=sys.stderr)
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context else ""
        print(f"error: {one_line(error.format_message())}{where}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - it is printed with its traceback
        if told := out_of_memory(error):
            return print_error(UsageError(told), debug="--debug" in words)
        if told := _of_the_system(error):
            return print_error(UsageError(told), debug="--debug" in words)
        if not hasattr(error, "exit_status"):
            traceback.print_exc()
            return DEFECT_STATUS
        return print_error(error, debug="--debug" in words)


def _of_the_system(error: Exception) -> str | None:
    """Return the message about an error that is no defect of this project; None for others."""
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return f"the working folder, or that of temporary files: {reason(error)}"
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return f"{error.filename}: {reason(error)}" if error.filename else reason(error)
    return None


def load_plugins_or_exit() -> None:
    """Load the plug-ins that PARITY_PLUGINS names; on failure, print one line and exit with 2.

    Call this before a command is defined: only then does it have the flags of a plug-in's
    network.
    """
    guard_standard_streams()
    try:
        load_plugins()
    except UsageError as error:
        sys.exit(print_error(error, debug="--debug" in sys.argv[1:]))


class PathType(click.ParamType):
    """A path, as `pathlib.Path`."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        path = Path(value)
        if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
            name = param.opts[0]
            name = name if name.startswith("-") else name.upper()
            raise UsageError(
                f"{name} is {str(value)[:_SHOWN]!r}..., a name that is too long; "
                f"allowed: {_LONGEST_NAME} bytes"
            )
        return path
