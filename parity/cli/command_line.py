"""The command lines, made from the specs, so that both sides' flags cannot drift apart."""

import dataclasses
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
from parity.base.plugins import load_plugins
from parity.cli.options import ChatOptions, TrainOptions
from parity.spec.networks import NETWORKS
from parity.spec.presets import preset
from parity.spec.spec import Spec
from parity.spec.training import TrainSpec


def fail(error: BaseException, *, debug: bool) -> int:
    """Print one line for an error that a command raises on purpose, and return its status.

    Raises:
      The error itself, if it is a defect of the project.
    """
    status = getattr(error, "exit_status", None)
    if status is None:
        raise error
    if debug:
        traceback.print_exception(error)
    message = " ".join(str(error).splitlines())
    print(f"error: {message}", file=sys.stderr, flush=True)
    return int(status)


def main(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; bad use is one line on stderr.

    A defect of the project keeps its traceback, and has the status DEFECT_STATUS.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # an int is a command's own status; with standalone mode off, click returns it
        return command.main(args=words, standalone_mode=False) or 0
    except click.exceptions.Abort:
        print("error: interrupted", file=sys.stderr)
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f" (see {context.command_path} --help)" if context else ""
        message = " ".join(error.format_message().splitlines())
        print(f"error: {message}{where}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001 - it is printed, with its traceback
        if not hasattr(error, "exit_status"):
            traceback.print_exc()
            return DEFECT_STATUS
        return fail(error, debug="--debug" in words)


def spec_options(*left_out: str) -> Callable[[Callable], Callable]:
    """Return a decorator that adds a flag for each field of the specs but those left out.

    The flags have no default: the preset has it. A field that several networks have is one
    flag; that a flag is another network's is found when the spec is made.
    """
    classes = [
        TrainSpec,
        *(cls for each in NETWORKS.values() for cls in (each.model, each.text)),
    ]

    def decorate(command: Callable) -> Callable:
        seen = set(left_out)
        for cls in classes:
            command = _options(cls, command, defaults=False, left_out=seen)
            seen |= {field.name for field in dataclasses.fields(cls)}
        return command

    return decorate


def command_options(cls: type) -> Callable[[Callable], Callable]:
    """Return a decorator that adds a flag for each field of an options class."""
    return lambda command: _options(cls, command, defaults=True)


def take(cls: type, values: dict[str, Any]) -> Any:
    """Make an options object of the flags that belong to it, and remove them from `values`."""
    return cls(**{field.name: values.pop(field.name) for field in dataclasses.fields(cls)})


def spec_from(network: str, preset_name: str, values: dict[str, Any]) -> Spec:
    """Return the preset with the flags that were given in place of its values.

    Raises:
      UsageError: for an unknown network or preset, a flag that only another network has, or a
        value out of range.
    """
    spec = preset(network, preset_name)
    given = {name: value for name, value in values.items() if value is not None}
    known = {
        field.name
        for part in (spec.model, spec.text, spec.training)
        for field in dataclasses.fields(part)
    }
    for name in given:
        if name not in known:
            others = [
                other
                for other, each in NETWORKS.items()
                if any(
                    name == field.name
                    for cls in (each.model, each.text)
                    for field in dataclasses.fields(cls)
                )
            ]
            raise UsageError(
                f"{flag(name)} is no flag of --network {network}; allowed with --network "
                f"{' or '.join(others)}"
            )
    return spec.replace(**given)


def load_plugins_or_exit() -> None:
    """Load what PARITY_PLUGINS names; on failure, exit with one line and status 2.

    A command has the flags of a plug-in's network only if it is made after this.
    """
    try:
        load_plugins()
    except UsageError as error:
        sys.exit(fail(error, debug=False))


def train_command(framework: str, train: Callable[[Spec, TrainOptions], None]) -> None:
    """Run a side's `train.py`: parse the flags, call `train`, exit with its status."""
    load_plugins_or_exit()

    @click.command(help=f"Train a network with {framework}.")
    @command_options(TrainOptions)
    @spec_options()
    def command(**values: Any) -> int:
        options = take(TrainOptions, values)
        train(spec_from(options.network, options.preset, values), options)
        return 0

    sys.exit(main(command))


def chat_command(framework: str, chat: Callable[[ChatOptions], None]) -> None:
    """Run a side's `chat.py`: parse the flags, call `chat`, exit with its status."""
    load_plugins_or_exit()

    @click.command(help=f"Ask a trained network, run by {framework}.")
    @command_options(ChatOptions)
    def command(**values: Any) -> int:
        chat(take(ChatOptions, values))
        return 0

    sys.exit(main(command))


def _options(
    cls: type, command: Callable, *, defaults: bool, left_out: Collection[str] = ()
) -> Callable:
    hints = typing.get_type_hints(cls)
    for field in reversed(dataclasses.fields(cls)):
        if field.name in left_out:
            continue
        kind = _plain(hints[field.name])
        keywords: dict[str, Any] = {"help": field.metadata["help"]}
        names = [flag(field.name)]
        if defaults:
            keywords |= {"default": field.default, "show_default": field.default is not None}
        if kind is bool:
            if field.default or not defaults:
                names = [f"{names[0]}/--no-{names[0][2:]}"]
            if not defaults:
                keywords["default"] = None
            keywords["is_flag"] = True
        elif typing.get_origin(kind) is tuple:
            keywords["type"] = _Several(typing.get_args(kind)[0])
            keywords["show_default"] = ",".join(map(str, field.default))
        else:
            keywords["type"] = _Folder() if kind is Path else kind
        if field.metadata["choices"]:
            keywords["help"] += f" ({', '.join(field.metadata['choices'])})"
        if field.name == "resume":
            keywords |= {"is_flag": False, "flag_value": ""}
        command = click.option(*names, field.name, **keywords)(command)
    return command


def _plain(hint: Any) -> Any:
    """Return the type behind an optional one."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    return hint


class _Folder(click.ParamType):
    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        return Path(value)


class _Several(click.ParamType):
    """Values with commas between them."""

    def __init__(self, kind: type):
        self._kind = kind
        self.name = f"{kind.__name__},..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(each) for each in value.split(","))
        except ValueError:
            raise UsageError(
                f"{param.opts[0]} is {value!r}; allowed: numbers with commas between them"
            ) from None
