"""The command lines of the laboratory, made from the specs: the same flags on all sides."""

import dataclasses
import sys
from collections.abc import Callable, Collection
from typing import Any

import click

from parity.base.errors import UsageError
from parity.base.fields import flag
from parity.cli.command_line import add_options, load_plugins_or_exit, main, take_options
from parity.twins.cli.config import (
    ConfigOption,
    config_options,
    config_text,
    errors_name_config,
)
from parity.twins.cli.help import PARTS, GroupedCommand, names_text
from parity.twins.cli.options import ChatOptions, TrainOptions
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

    sys.exit(main(command))


def chat_command(framework: str, chat: Callable[[ChatOptions], None]) -> None:
    """Run a framework's `chat.py`: parse the flags, call `chat`, and exit with its status."""
    load_plugins_or_exit()

    title = FRAMEWORKS[framework].title

    @click.command(cls=GroupedCommand, help=f"Ask a trained network questions, with {title}.")
    @command_options(ChatOptions)
    def command(**values: Any) -> int:
        chat(take_options(ChatOptions, values))
        return 0

    sys.exit(main(command))


def _add_options(
    cls: type,
    command: Callable,
    *,
    defaults: bool,
    left_out: Collection[str] = (),
    group: str | None = None,
) -> Callable:
    return add_options(
        cls,
        command,
        defaults=defaults,
        left_out=left_out,
        option_class=ConfigOption,
        names_of=names_text,
        group=group,
    )
