"""`--config FILE` and `--print-config`: the options of a run as a YAML file.

A key is the name of an option without its dashes, and a value what the option takes; null
stands for an option that is not given. Flags on the command line win over the file.
"""

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import yaml
from click.core import ParameterSource

from parity.base.errors import UsageError
from parity.base.files import (
    CONFIG,
    HEADER,
    read_file,
    reason,
    write_whole,
    written_by_run,
)
from parity.cli.command_line import PathType
from parity.twins.spec.fields import flag
from parity.twins.spec.spec import Spec

_MOST_BYTES = 64 * 1024  # ten times as many as all options take
_MOST_SHOWN = 40  # characters of a value, in a message
# What says how a run was started and not what it trains; config.yaml leaves it out.
_OF_ONE_START = ("resume", "overwrite", "allow_change")
# Key of click's `meta`: name of an option -> its place in the file.
_LINES = "parity.twins.cli.config"
_NAMES = {int: "an integer", float: "a number", bool: "true or false"}
_YAML = "tag:yaml.org,2002:"


class ConfigOption(click.Option):
    """An option of the command line that a file can set.

    Args:
      kind: the type of its value; for one with several values, the type of each.
      several: whether it takes several values, which a file gives as a list.
      group: the heading of the help that it stands under, unless its name says it.
    """

    def __init__(
        self,
        *arguments: Any,
        kind: Any,
        several: bool = False,
        group: str | None = None,
        **keywords: Any,
    ):
        super().__init__(*arguments, **keywords)
        self.kind, self.several, self.group = kind, several, group


def config_options(command: Callable) -> Callable:
    """Add `--config` and `--print-config`; the command is called with `print_config`."""
    command = click.option(
        "--print-config",
        is_flag=True,
        help="print the whole configuration as YAML, as --config reads it, and do nothing else",
    )(command)
    return click.option(
        "--config",
        metavar="FILE",
        type=PathType(),
        is_eager=True,  # the other options take their defaults from it
        expose_value=False,
        callback=_use_config,
        help="YAML file of options, without their dashes, such as hidden-size: 200; flags win "
        f"over it. Every run writes its own to --out, as {CONFIG}",
    )(command)


def _use_config(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    options = {
        each.name: each for each in context.command.params if isinstance(each, ConfigOption)
    }
    read = list(read_config(path, options))
    context.default_map = {name: value for name, value, _ in read}
    context.meta[_LINES] = {name: place for name, _, place in read}


def read_config(
    path: Path, options: Mapping[str, ConfigOption]
) -> Iterator[tuple[str, Any, str]]:
    """Read a file of options.

    Args:
      path: the file.
      options: the names of the options that it can set, with underscores -> the options.

    Yields:
      The name of an option, its value, and its place in the file, for messages. Options that
      are null are left out.

    Raises:
      UsageError: if the file cannot be read, is no YAML, or has a key or a value that is not
        allowed; the message names file, line and key.
    """
    loader = _Loader(_checked_text(path))
    root = loader.get_single_node()
    seen: dict[str, int] = {}
    for key, value in [] if root is None else root.value:
        line, shown = key.start_mark.line + 1, _shown(key)
        place, name = f"{path}, line {line}: {shown}", shown.replace("-", "_")
        if name not in options:
            near = difflib.get_close_matches(name, options, 1)
            allowed = f"{flag(near[0])[2:]}, or " if near else ""
            raise UsageError(
                f"{place} is no option; allowed: {allowed}an option of --help-all, without "
                "dashes"
            )
        if name in seen:
            raise UsageError(f"{place} is also in line {seen[name]}; allowed: each key once")
        seen[name] = line
        if value.tag == _YAML + "null":
            continue
        option = options[name]
        if option.several:
            yield name, _values(loader, value, option.kind, place), place
        else:
            yield name, _value(loader, value, option.kind, place), place


def is_given(name: str) -> bool:
    """Return whether the running command was given an option, by a flag or by `--config`."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


@contextmanager
def errors_name_config() -> Iterator[None]:
    """Let an error about an option that the file has set name the file, not a flag."""
    try:
        yield
    except UsageError as error:
        context = click.get_current_context()
        found = re.match(r"--([a-z0-9-]+)(?= is )", str(error))
        name = found[1].replace("-", "_") if found else ""
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
            raise
        assert found is not None
        message = str(error)[found.end() :]
        raise UsageError(f"{context.meta[_LINES][name]}{message}") from error


def config_text(options: Any, spec: Spec, left_out: tuple[str, ...] = ()) -> str:
    """Return options and spec as YAML that `--config` reads.

    Args:
      options: the options of a command.
      spec: the network and its training; fields that the options have as well are theirs.
      left_out: names of options to leave out.
    """
    values = {**spec.values(), **_fields(options)}
    ordered = {name: values[name] for name in (*_fields(options), *spec.values())}
    plain = {flag(name)[2:]: v for name, v in ordered.items() if name not in left_out}
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def check_config(folder: Path) -> None:
    """Check that a run may write config.yaml to a folder.

    Raises:
      UsageError: if a file of this name is there that no run has written.
    """
    path = folder / CONFIG
    try:
        ours = written_by_run(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}") from None
    if not ours:
        raise UsageError(
            f"{path}: no run has written it, and this one would replace it; allowed: another "
            "folder, or another name for the file"
        )


def write_config(folder: Path, options: Any, spec: Spec) -> None:
    """Write config.yaml to the folder of a run, from which `--config` trains the same again.

    Args:
      folder: the folder, which exists.
      options: the options of the run, with all defaults that depend on the machine filled in.
      spec: the network and its training.

    Raises:
      UsageError: if it cannot be written, or would replace a file of the user.
    """
    text = HEADER + config_text(options, spec, _OF_ONE_START)
    check_config(folder)
    write_whole(folder / CONFIG, text.encode())


def values_of_run(folder: Path) -> dict[str, Any]:
    """Return what the config.yaml of a run says; empty where no run has written one.

    Args:
      folder: the run's folder, `--out`.

    Returns:
      The name of an option, with underscores -> its value.
    """
    try:
        text = _checked_text(folder / CONFIG)
        values = _Loader(text).get_single_data() if text.startswith(HEADER) else None
    except (UsageError, ValueError, yaml.YAMLError):
        return {}
    return {str(name).replace("-", "_"): value for name, value in (values or {}).items()}


def _fields(options: Any) -> dict[str, Any]:
    """Return name -> value of all options, those that several commands share among them."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        found |= _fields(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return found


class _Loader(yaml.SafeLoader):
    """Reads YAML, and numbers such as 1e-3 as YAML 1.2 does: they are text in YAML 1.1."""


_Loader.add_implicit_resolver(
    f"{_YAML}float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """Writes one line for each option."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: two options may have the same tuple, and `--config` reads no aliases."""
        return True


_Dumper.add_multi_representer(
    Path, lambda dumper, path: dumper.represent_scalar(f"{_YAML}str", str(path))
)
_Dumper.add_representer(
    tuple,
    lambda dumper, each: dumper.represent_sequence(f"{_YAML}seq", each, flow_style=True),
)


def _checked_text(path: Path) -> str:
    """Return the text of a file that is a mapping of scalars and of lists of scalars.

    The events are checked before a tree is made of them, which would take memory and stack.
    """
    try:
        content = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"--config: {path}: cannot be read: {reason(error)}") from None
    try:
        text = content.decode("utf-8-sig")
        depth = documents = 0
        for event in yaml.parse(text, Loader=_Loader):
            documents += isinstance(event, yaml.DocumentStartEvent)
            _check_event(event, depth, documents, path)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 at byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: is no YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = f", line {text.count(chr(10), 0, error.position) + 1}"
        seen = ascii(text[error.position])
        raise UsageError(f"{path}{line}: has the character {seen}, no YAML") from None
    return text


def _check_event(event: yaml.Event, depth: int, documents: int, path: Path) -> None:
    """Check one event of a document, which is `depth` collections deep."""
    wrong = None
    if documents > 1:
        wrong = "begins a second document"
    elif getattr(event, "anchor", None) or getattr(event, "tag", None) not in (None, "!"):
        wrong = "has an anchor, an alias or a tag"
    elif depth == 0 and isinstance(event, (yaml.ScalarEvent, yaml.SequenceStartEvent)):
        wrong = "is no list of options"
    elif isinstance(event, yaml.CollectionStartEvent) and depth >= 2:
        wrong = "is nested too deeply"
    elif isinstance(event, yaml.MappingStartEvent) and depth == 1:
        wrong = "has options within an option"
    if wrong:
        line = f", line {event.start_mark.line + 1}" if event.start_mark else ""
        raise UsageError(f"{path}{line}: {wrong}; allowed: lines of `option: value`")


def _values(loader: _Loader, node: yaml.Node, kind: type, place: str) -> tuple:
    """Return the values of an option: a list, a single one, or as a flag takes several."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(_value(loader, each, kind, place) for each in node.value)
    if kind is str:
        return tuple(str(node.value).split(","))
    if "," not in str(node.value):
        return (_value(loader, node, kind, place),)
    try:
        return tuple(kind(each) for each in node.value.split(","))
    except ValueError:
        raise UsageError(
            f"{place} is {node.value!r}; allowed: a list of {_NAMES[kind]} each"
        ) from None


def _value(loader: _Loader, node: yaml.Node, kind: type, place: str) -> Any:
    """Return the value of an option, of the option's type."""
    if not isinstance(node, yaml.ScalarNode):
        raise UsageError(f"{place} is a list; allowed: {_NAMES.get(kind, 'one value')}")
    if kind in (str, Path):  # as it stands there: a schedule's seed may be called 5
        if not _is_argument(node.value):
            raise UsageError(f"{place} is {node.value!a}; allowed: what a flag can take")
        return node.value
    tags = {int: ("int",), float: ("int", "float"), bool: ("bool",)}[kind]
    try:
        if node.tag.removeprefix(_YAML) in tags:
            value = kind(loader.construct_object(node))
            # YAML 1.1 takes 010 for 8 and 1:30 for 90
            if kind is bool or not math.isfinite(value) or value == kind(node.value):
                return value
    except (ValueError, OverflowError):  # of thousands of digits
        pass
    raise UsageError(f"{place} is {_shown(node)!r}; allowed: {_NAMES[kind]}")


def _shown(node: yaml.Node) -> str:
    """Return what a node says, shortened, for a message."""
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _is_argument(text: str) -> bool:
    """Return whether a command could be given a text as an argument."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
