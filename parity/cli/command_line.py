"""Command lines made from classes of options, and what becomes of a command's errors."""

import dataclasses
import errno
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import click

from parity.base.errors import DEFECT_STATUS, UsageError
from parity.base.fields import flag
from parity.base.files import reason
from parity.base.machine import out_of_memory
from parity.base.plugins import load_plugins
from parity.base.process import stop_as_python_does
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


def take_options(cls: type, values: dict[str, Any]) -> Any:
    """Return an options object made of its fields in `values`, and remove them from there."""
    hints = typing.get_type_hints(cls)
    return cls(
        **{
            field.name: take_options(hints[field.name], values)
            if dataclasses.is_dataclass(hints[field.name])
            else values.pop(field.name)
            for field in dataclasses.fields(cls)
        }
    )


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


def add_options(
    cls: type,
    command: Callable,
    *,
    defaults: bool,
    left_out: Collection[str] = (),
    option_class: type[click.Option] = click.Option,
    names_of: Callable[[str], str] = lambda name: "",
    **extra: Any,
) -> Callable:
    """Add a flag to a command for each field of a class of options.

    Args:
      defaults: whether the flags have the fields' defaults; otherwise a flag that is not given
        is None.
      left_out: names of fields that get no flag.
      option_class: the class of the flags; another than click's own is told the type of the
        value as `kind`, and as `several` whether there may be more than one.
      names_of: returns what the help says of the names that a field takes, in brackets.
      **extra: further arguments of `option_class`.
    """
    hints = typing.get_type_hints(cls)
    for field in reversed(dataclasses.fields(cls)):
        if field.name in left_out:
            continue
        kind = _without_none(hints[field.name])
        if dataclasses.is_dataclass(kind):  # options that several commands share
            assert isinstance(kind, type)
            command = add_options(
                kind,
                command,
                defaults=defaults,
                left_out=left_out,
                option_class=option_class,
                names_of=names_of,
                **extra,
            )
            continue
        keywords: dict[str, Any] = {
            "help": field.metadata["help"] + (_allowed_text(field) or names_of(field.name))
        }
        names, several = [flag(field.name)], False
        if defaults:
            keywords |= {"default": field.default, "show_default": field.default is not None}
        if kind is bool:
            if field.default or not defaults:
                names = [f"{names[0]}/--no-{names[0][2:]}"]
            if not defaults:
                keywords["default"] = None
            keywords["is_flag"] = True
        elif typing.get_origin(kind) is tuple:
            several, kind = True, typing.get_args(kind)[0]
            keywords["type"] = _CommaSeparated(kind)
            # click would print a tuple with spaces, which no flag takes
            keywords["show_default"] = False
            if field.default and "[default:" not in keywords["help"]:
                keywords["help"] += f"  [default: {','.join(map(str, field.default))}]"
        else:
            keywords["type"] = PathType() if kind is Path else kind
        if field.name == "resume":  # the only flag whose value may be left out
            keywords |= {"is_flag": False, "flag_value": ""}
        if option_class is not click.Option:
            keywords |= {"cls": option_class, "kind": kind, "several": several, **extra}
        command = click.option(*names, field.name, **keywords)(command)
    return command


def _allowed_text(field: dataclasses.Field) -> str:
    """Return the values that a field allows, in brackets; empty if it allows any value."""
    bounds = field.metadata["bounds"].items()
    words = field.metadata["choices"] or [
        f"{kind.replace('_', ' ')} {bound:g}" for kind, bound in bounds if bound is not None
    ]
    return f" ({', '.join(words)})" if words else ""


def _without_none(hint: Any) -> Any:
    """Return the type T for the annotation `T | None`, and any other annotation unchanged."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    return hint


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


class _CommaSeparated(click.ParamType):
    """Several values, separated by commas."""

    def __init__(self, kind: type):
        self._kind = kind
        self.name = f"{'integer' if kind is int else 'text'},..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(each) for each in value.split(","))
        except ValueError:
            raise UsageError(
                f"{param.opts[0]} is {value!r}; allowed: numbers separated by commas"
            ) from None
