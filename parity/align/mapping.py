"""The file that says what of one trace is what of another: read, written and used."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
import yaml

from parity.align.kinds import Part
from parity.align.layout import Layout
from parity.align.names import Key, NameMap, Rename, Source
from parity.base.errors import UsageError
from parity.base.files import read_file, reason, write_whole
from parity.base.text import some_of
from parity.trace.reader import Trace, View
from parity.trace.rungs import fits
from parity.trace.side import labels_of

FORMAT = 1
_MOST_BYTES = 2**23  # of a map: tens of thousands of tensors, which take some seconds
SIDES = ("a", "b")
Tensors = Mapping[str, np.ndarray]
Parts = dict[str, tuple[Part, Part]]


@dataclass(frozen=True)
class Row:
    """A unit of both sides.

    Attributes:
      units: what the two sides call it.
      kind: what it is.
      use: whether it is used; a proposal that is not sure is not, until the user says so.
      why: what speaks for it and against it.
      parameters, outputs: shared name -> what it is on each side.
    """

    units: tuple[str, str]
    kind: str
    use: bool
    why: str
    parameters: Parts = field(default_factory=dict)
    outputs: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class NameMapping:
    """What of one side is what of the other.

    Attributes:
      labels: what reports call the sides.
      rows: the units.
      slots: shared name of an optimiser's slot -> what each side calls it.
      left_out: for each side, patterns of names, with a rung or without one, of what is not
        compared.
    """

    labels: tuple[str, str]
    rows: Sequence[Row]
    slots: Mapping[str, tuple[str, str]]
    left_out: tuple[Sequence[str], Sequence[str]]

    def parameters(self) -> Parts:
        """Return shared name -> what it is on each side, of the rows that are used."""
        used = [row for row in self.rows if row.use]
        return {name: each for row in used for name, each in row.parameters.items()}

    def names(self) -> list[list[str]]:
        """Return shared name, kind, and what each side calls it, of the rows that are used."""
        return [
            [name, row.kind, *(_flow(_plain(part)) for part in both)]
            for row in self.rows
            for name, both in (*row.parameters.items(), *row.outputs.items()) * row.use
        ]

    def name_map(self, side: int) -> NameMap:
        """Return the name map of a side, 0 or 1, of the rows that are used."""
        names: dict[Key, str | Rename] = {}
        shared = set[str]()
        for row in self.rows:
            for name, both in (*row.parameters.items(), *row.outputs.items()) * row.use:
                own = both[side].names
                if name in shared or own in names:
                    told = " + ".join(own)
                    raise UsageError(f"{name}, {told}: in two rows; allowed: one")
                shared.add(name)
                names[own] = Rename(name, *both[side].layout)
        return NameMap(names, {each[side]: name for name, each in self.slots.items()})

    def side_of(self, trace: Trace) -> int:
        """Return which side a trace is of.

        Raises:
          UsageError: if it is of neither.
        """
        label, names = trace.side.framework, _first_names(trace)
        for side in sorted((0, 1), key=lambda each: self.labels[each] != label):
            mine = {n for each in self.parameters().values() for n in each[side].names}
            if all(f"initial/{name}" in names for name in mine):
                return side
        raise UsageError(
            f"{trace.folder}: lacks initial weights that the map names; allowed: a trace of "
            f"{' or '.join(self.labels)} that was watched from its first step on"
        )

    def mapped(self, traces: Sequence[Trace]) -> list[Trace]:
        """Return two traces in the names and layouts that both share.

        Raises:
          UsageError: for a trace of another training than the map is of.
        """
        labels = labels_of([each.side for each in traces], [each.folder for each in traces])
        found: list[Trace] = []
        for side, trace in enumerate(traces):
            self._check_names(side, _first_names(trace), labels[side])
            known = {
                name for each in found for line in each.lines() for name in line["digests"]
            }
            mine = self.name_map(side), self.left_out[side], labels[side], known
            found.append(trace.over(lambda each, mine=mine: _Mapped(each, *mine)))  # type: ignore[misc]
        return found

    def _check_names(self, side: int, names: Iterable[str], label: str) -> None:
        """Check that a trace has what the map names, if it has tensors that no row names.

        A trace may lack a tensor by itself: not all that can be recorded has to be.
        """
        names_of_side = self.name_map(side)
        sources = names_of_side.sources(n for n in names if not self._leaves_out(side, n))
        unsure = {
            name
            for row in self.rows
            for both in (*row.parameters.values(), *row.outputs.values()) * (not row.use)
            for name in both[side].names
        }
        left = {
            _once(name)[1]
            for name, each in sources.items()
            if each.row is None and not _is_common(name)
        } - unsure
        slots = {name.rpartition("/")[2] for name in names if name.startswith("optimizer/")}
        lacking = names_of_side.unused(sources)
        lacking += sorted({each[side] for each in self.slots.values()} - slots) * bool(slots)
        if left and lacking:
            raise UsageError(
                f"the map names {lacking[0]!r} of {label}, which has no such tensor; in no row "
                f"is {some_of(sorted(left), 2)}"
            )

    def _leaves_out(self, side: int, name: str) -> bool:
        return any(fits(each, *self.left_out[side]) for each in _once(name))

    def in_terms_of(
        self, side: int, shared: Tensors, own: Tensors, kinds: Container[str]
    ) -> dict[str, np.ndarray]:
        """Return shared tensors as a side has them.

        Args:
          own: what the side recorded, for its names and shapes.
          kinds: first parts of the names of those that are returned.
        """
        names = [
            name
            for name in own
            if name.partition("/")[0] in kinds
            and not fits(name.partition("/")[2], *self.left_out[side])
        ]
        found: dict[str, np.ndarray] = {}
        for name, source in self.name_map(side).sources(names).items():
            if name in shared:
                layout = source.row.layout if source.row else Layout()
                back = layout.invert(shared[name], len(source.given), terms=False)
                found |= zip(source.given, back, strict=True)
        return {name: x for name, x in found.items() if x.shape == own[name].shape}


def unmapped(traces: Sequence[Trace], mapping: NameMapping) -> list[list[str]]:
    """Return for each side the parameters that no row has and that are not left out."""
    found = []
    for side, trace in enumerate(traces):
        parts = [each[side] for row in mapping.rows for each in row.parameters.values()]
        known = {name for part in parts for name in part.names}
        weights = sorted(n for n in _first_names(trace) if n.startswith("initial/"))
        names = [name.removeprefix("initial/") for name in weights]
        found.append(
            [n for n in names if n not in known and not fits(n, *mapping.left_out[side])]
        )
    return found


class _Mapped(View):
    """A trace in shared names and layouts.

    Args:
      known: the names of the other side's tensors, which one that is not mapped must not have.
    """

    def __init__(
        self,
        trace: Trace,
        names: NameMap,
        left_out: Sequence[str],
        label: str,
        known: Container[str],
    ):
        super().__init__(trace)
        self._map, self._left_out, self._label, self._known = names, left_out, label, known
        self._plans: dict[tuple[str, ...], dict[str, Source]] = {}

    @property
    def sources(self) -> dict[str, str]:
        return self._map.in_shared_names(self._whole.sources)

    def lines(self) -> Iterator[dict[str, Any]]:
        for line in self._whole.lines():
            yield line | {"digests": dict.fromkeys(self._renamed(line["digests"]), "")}

    def everything(
        self, chosen: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for step, tensors in self._whole.everything(chosen):
            yield step, self._values(tensors)

    def _values(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: each.value(tensors) for name, each in self._renamed(tensors).items()}

    def _renamed(self, names: Mapping[str, Any]) -> dict[str, Source]:
        return {
            name
            if each.row or name not in self._known or _is_common(name)
            else f"{name} ({self._label})": each
            for name, each in self._sources(names).items()
        }

    def _sources(self, names: Mapping[str, Any]) -> dict[str, Source]:
        key = tuple(names)
        if key not in self._plans:
            self._plans[key] = self._map.sources(n for n in names if not self._leaves_out(n))
        return self._plans[key]

    def _leaves_out(self, name: str) -> bool:
        return any(fits(each, *self._left_out) for each in _once(name))


def _once(name: str) -> tuple[str, str]:
    """Return a tensor's name without the number of a further call, and without its rung."""
    once = re.sub(r"#\d+", "", name)
    return once, once.partition("/")[2]


def _is_common(name: str) -> bool:
    """Return whether a name means the same on both sides without a row."""
    return name.split("/", 1)[0] in ("batch", "loss", "gradient_norm")


def _first_names(trace: Trace) -> frozenset[str]:
    return frozenset(next(iter(trace.lines()), {"digests": {}})["digests"])


_HEAD = """\
# What of {a} is what of {b}: a proposal of `parity align`, to be read and mended.
# A row with `use: false` is not sure, and not used; say true where it is right.
# A layout leads from a side's own tensors (`of`) to the shared one.
"""


def write(mapping: NameMapping, path: Path) -> None:
    """Write a mapping as a file for people.

    Raises:
      UsageError: if it cannot be written.
    """
    a, b = mapping.labels
    lines = [_HEAD.format(a=a, b=b), f"format: {FORMAT}", f"a: {_flow(a)}", f"b: {_flow(b)}"]
    lines.append("units:" if mapping.rows else "units: []")
    for row in mapping.rows:
        lines.append(f"\n- units: {_flow(list(row.units))}")
        lines += [f"  kind: {row.kind}", f"  use: {_flow(row.use)}", f"  why: {_flow(row.why)}"]
        for title, parts in (("parameters", row.parameters), ("outputs", row.outputs)):
            if parts:
                lines.append(f"  {title}:")
            for name, sides in parts.items():
                lines.append(f"    {_flow(name)}:")
                lines += [
                    f"      {side}: {_flow(_plain(part))}"
                    for side, part in zip(SIDES, sides, strict=True)
                ]
    lines.append("\n# slots of the optimisers")
    lines.append("slots:" if mapping.slots else "slots: {}")
    for name, slots in mapping.slots.items():
        lines.append(f"  {_flow(name)}: {_flow(dict(zip(SIDES, slots, strict=True)))}")
    lines.append("\n# not compared: counters, and what the other side has no partner for")
    lines.append("left_out:")
    for side, patterns in zip(SIDES, mapping.left_out, strict=True):
        lines.append(f"  {side}:" if patterns else f"  {side}: []")
        lines += [f"  - {_flow(each)}" for each in patterns]
    write_whole(path, ("\n".join(lines) + "\n").encode())


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _plain(part: Part) -> Any:
    of = list(part.names) if len(part.names) > 1 else part.names[0]
    return {"of": of, "layout": list(part.layout)} if part.layout else of


class _Loader(yaml.SafeLoader):
    """Reads plain values, each key once.

    There are no aliases: lists of lists of the same could grow for ever.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias; allowed: plain values")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                told = f"{shortened(key.value)} twice, in line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"{told}; allowed: each key once")
            seen.add(key.value)
        return node


def read(path: Path) -> NameMapping:
    """Read a mapping.

    Raises:
      UsageError: if the file cannot be read, or is no mapping.
    """
    try:
        values = _Loader(read_file(path, _MOST_BYTES)).get_single_data()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, not UTF-8
        raise UsageError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply; allowed: what align writes") from None
    try:
        return _mapping(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _mapping(values: Any) -> NameMapping:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        seen = values.get("format") if isinstance(values, dict) else values
        raise UsageError(
            f"format is {shortened(seen)}; allowed: {FORMAT}, as parity align writes"
        )
    _check_keys("the map", values, {"format", "a", "b", "units", "slots", "left_out"})
    slots = _typed("slots", values.get("slots", {}), dict)
    left_out = _typed("left_out", values.get("left_out", {}), dict)
    mapping = NameMapping(
        (_typed("a", values.get("a"), str), _typed("b", values.get("b"), str)),
        [_row(each) for each in _typed("units", values.get("units"), list)],
        {name: _both(f"slot {name}", each, str) for name, each in slots.items()},
        (_texts("left_out", left_out.get("a", [])), _texts("left_out", left_out.get("b", []))),
    )
    for side in (0, 1):
        mapping.name_map(side)  # which refuses layouts and names that make no sense
    return mapping


def _row(values: Any) -> Row:
    values = _typed("a unit", values, dict)
    units = _texts("units", values.get("units"))
    if len(units) != 2:
        raise UsageError(f"units is {shortened(units)}; allowed: one of each side")
    told = " and ".join(units)
    _check_keys(told, values, {"units", "kind", "use", "why", "parameters", "outputs"})
    parts: list[Parts] = []
    for title in ("parameters", "outputs"):
        found = _typed(f"{told}: {title}", values.get(title, {}), dict)
        both = {name: _both(f"{told}: {name}", each, object) for name, each in found.items()}
        parts.append({n: (_part(n, a), _part(n, b)) for n, (a, b) in both.items()})
    return Row(
        (units[0], units[1]),
        str(values.get("kind", "")),
        _typed(f"{told}: use", values.get("use"), bool),
        str(values.get("why", "")),
        *parts,
    )


def _part(name: str, value: Any) -> Part:
    if not isinstance(value, dict):
        return Part((_typed(name, value, str),))
    _check_keys(name, value, {"of", "layout"})
    of = value.get("of")
    names = _texts(f"{name}: of", [of] if isinstance(of, str) else of)
    layout = value.get("layout", [])
    Layout.read(layout)
    return Part(tuple(names), tuple(layout))


def _both(name: str, value: Any, kind: type) -> tuple[Any, Any]:
    value = _typed(name, value, dict)
    _check_keys(name, value, set(SIDES))
    a, b = (_typed(f"{name}: {side}", value.get(side), kind) for side in SIDES)
    return a, b


_WORDS = {dict: "keys and values", list: "a list", str: "text", bool: "true or false"}


def _typed(name: str, value: Any, kind: type) -> Any:
    if value is None or not isinstance(value, kind):
        raise UsageError(f"{name} is {shortened(value)}; allowed: {_WORDS.get(kind, 'a name')}")
    return value


def _texts(name: str, value: Any) -> list[str]:
    return [_typed(name, each, str) for each in _typed(name, value, list)]


def _check_keys(name: str, values: Mapping[str, Any], allowed: set[str]) -> None:
    for key in values:
        if key not in allowed:
            raise UsageError(f"{name} has {key!r}; allowed: {', '.join(sorted(allowed))}")
