"""The command lines of the laboratory, made from the specs: the same flags on all sides."""

import dataclasses
import types
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from parity.base.errors import UsageError
from parity.cli.command_line import PathType, load_plugins_or_exit, run_and_exit
from parity.twins.cli.config import (
    ConfigOption,
    config_options,
    config_text,
    errors_name_config,
)
from parity.twins.cli.help import PARTS, GroupedCommand, names_text
from parity.twins.cli.options import ChatOptions, TrainOptions
from parity.twins.spec.fields import flag
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, preset
from parity.twins.spec.training import TrainSpec


def spec_options(*left_out: str) -> Callable[[Callable], Callable]:
    """Return a decorator that adds a flag for each field of the specs, except some fields.

    The flags have no defaults, because the preset has them. A field that several networks have
    is a single flag. Whether a flag belongs to the chosen network is checked by `spec_from`.

    Args:
      *left_out: names of the fields that get no flag.
    """
    classes: dict[type, str] = {TrainSpec: PARTS["training"]}
    for each in NETWORKS.values():
        classes |= {each.model: PARTS["model"], each.text: PARTS["text"]}

    def decorate(command: Callable) -> Callable:
        seen = set(left_out)
        for cls, group in classes.items():
            command = _add_options(cls, command, defaults=False, left_out=seen, group=group)
            seen |= {field.name for field in dataclasses.fields(cls)}
        return command

    return decorate


def command_options(cls: type) -> Callable[[Callable], Callable]:
    """Return a decorator that adds a flag, with its default, for each field of a class."""
    return lambda command: _add_options(cls, command, defaults=True)


def spec_from(network: str, preset_name: str, values: dict[str, Any]) -> Spec:
    """Return a preset's spec, changed by the flags that were given.

    Args:
      network: the network's name.
      preset_name: the preset's name.
      values: field name -> the flag's value, or None if the flag was not given.

    Raises:
      UsageError: for an unknown network or preset, a flag that only another network has, or a
        value out of range.
    """
    spec = preset(network, preset_name)
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in spec.values():
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
                f"{flag(name)} is not a flag of --network {network}; allowed with --network "
                f"{' or '.join(others)}"
            )
    return spec.replace(**given)


def train_command(
    framework: str,
    train: Callable[[Spec, TrainOptions], None],
    resolved: Callable[[Spec, TrainOptions], TrainOptions],
) -> None:
    """Run a framework's `train.py`: parse the flags, call `train`, and exit with its status.

    Args:
      framework: the framework's name.
      train: trains.
      resolved: returns the options with the defaults filled in that depend on the framework,
        the text and the machine, for `--print-config`.
    """
    load_plugins_or_exit()

    @click.command(
        cls=GroupedCommand, help=f"Train a network with {FRAMEWORKS[framework].title}."
    )
    @config_options
    @command_options(TrainOptions)
    @spec_options()
    def command(print_config: bool, **values: Any) -> int:
        with errors_name_config():
            options = take_options(TrainOptions, values)
            spec = spec_from(options.network, options.preset, values)
            if print_config:
                options = resolved(spec, options)
                click.echo(config_text(options, spec), nl=False)
            else:
                train(spec, options)
        return 0

    run_and_exit(command)


def chat_command(framework: str, chat: Callable[[ChatOptions], None]) -> None:
    """Run a framework's `chat.py`: parse the flags, call `chat`, and exit with its status."""
    load_plugins_or_exit()

    title = FRAMEWORKS[framework].title

    @click.command(cls=GroupedCommand, help=f"Ask a trained network questions, with {title}.")
    @command_options(ChatOptions)
    def command(**values: Any) -> int:
        chat(take_options(ChatOptions, values))
        return 0

    run_and_exit(command)


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


def _add_options(
    cls: type,
    command: Callable,
    *,
    defaults: bool,
    left_out: Collection[str] = (),
    group: str | None = None,
) -> Callable:
    """Add a flag to a command for each field of a class of options.

    Args:
      defaults: whether the flags have the fields' defaults; otherwise a flag that is not given
        is None.
      left_out: names of fields that get no flag.
      group: the heading of the help that they stand under, unless their names say it.
    """
    hints = typing.get_type_hints(cls)
    for field in reversed(dataclasses.fields(cls)):
        if field.name in left_out:
            continue
        kind = _without_none(hints[field.name])
        if dataclasses.is_dataclass(kind):  # options that several commands share
            assert isinstance(kind, type)
            command = _add_options(
                kind, command, defaults=defaults, left_out=left_out, group=group
            )
            continue
        keywords: dict[str, Any] = {
            "help": field.metadata["help"] + (_allowed_text(field) or names_text(field.name))
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
        keywords |= {"cls": ConfigOption, "kind": kind, "several": several, "group": group}
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
