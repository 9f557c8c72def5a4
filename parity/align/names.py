"""Maps the names that a side's code gives to its tensors to those that both sides share."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parity.align.layout import Layout
from parity.base.errors import UsageError
from parity.trace.reduced import Reduced
from parity.trace.rungs import RUNGS, check_name, is_path

# The rungs of values that a sum of terms has; on others, each term has what the sum has.
_OF_TERMS = ("initial", "weight", "read")
_CALL = re.compile(r"#\d+")


class Rename:
    """The shared name of a tensor, and how it is laid out on both sides.

        Rename("fc1/kernel", "transpose")
        Rename("conv/kernel", {"axes": [2, 3, 1, 0]})

    Args:
      name: the shared name. With a rung ("weight/fc1/kernel") it renames one tensor. Without
        one ("fc1/kernel") it renames every tensor RUNG/NAME of that name: the weight, its
        gradient, and whatever an optimizer keeps for it.
      *layout: the steps from the recorded tensor to the shared one; see
        `parity.align.layout.Layout`.

    Raises:
      UsageError: for an empty name, or steps that are not allowed.
    """

    def __init__(self, name: str, *layout: Any):
        given: Any = name  # a user may have given anything
        if not isinstance(given, str) or not is_path(given):
            raise UsageError(f"name of a Rename is {given!r}; allowed: a path, a/b/c")
        self.name = name
        try:
            self.layout = Layout.read(layout)
        except UsageError as error:
            raise UsageError(f"{name!r}: {error}") from None


Key = str | tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where a shared tensor comes from.

    Attributes:
      given: the names of a side's tensors.
      row: the row of the name map, or None: it is what was given.
    """

    given: tuple[str, ...]
    row: Rename | None = None

    def value(self, tensors: Mapping[str, Any]) -> Any:
        """Return the shared tensor: an array, or `Reduced` where one that it needs is.

        Raises:
          UsageError: if the layout does not fit.
        """
        if self.row is None:
            return tensors[self.given[0]]
        given, layout = [tensors[name] for name in self.given], self.row.layout
        terms = _is_of_terms(self.given[0])
        try:
            if any(isinstance(each, Reduced) for each in given):
                return layout.apply_to_reduced(given, terms=terms)
            return layout.apply(given, terms=terms)
        except ValueError as error:
            told = ", ".join(map(repr, self.given))
            raise UsageError(f"tensor {told} {error}") from None


class NameMap:
    """Maps the names in a side's code to shared names.

    Args:
      names: name in the side's code -> shared name, or a `Rename` where the layout differs too.
        Of several tensors that become one, the key is a tuple.
      slots: what this side's optimiser calls a slot -> the shared name; the rest keep their
        own names and layouts. None: every slot is renamed with its parameter.

    Raises:
      UsageError: for a row that is neither.
    """

    def __init__(
        self, names: Mapping[Key, str | Rename], slots: Mapping[str, str] | None = None
    ):
        self._rows: dict[tuple[str, ...], Rename] = {}
        # name of one tensor, or of a tensor on every rung -> key of its row
        self._whole: dict[str, tuple[str, ...]] = {}
        self._parts: dict[str, tuple[str, ...]] = {}
        self._slots = slots
        for given, shared in names.items():
            row = Rename(shared) if isinstance(shared, str) else shared
            if not isinstance(row, Rename):
                raise UsageError(
                    f"name map, {given!r}: is {shared!r}; allowed: a name or a Rename"
                )
            key = (given,) if isinstance(given, str) else tuple(given)
            # with a rung in either name, the row is for this one tensor
            whole = _on_rung(row.name) or any(map(_on_rung, key))
            if whole:
                check_name(row.name)
            self._rows[key] = row
            for name in key:
                if name in self._whole or name in self._parts:
                    raise UsageError(f"name map, {name!r}: in two rows; allowed: one")
                (self._whole if whole else self._parts)[name] = key

    def sources(self, names: Iterable[str]) -> dict[str, Source]:
        """Return shared name -> where it comes from, in the order of the tensors given.

        Several tensors of which some are missing keep their own names.

        Raises:
          UsageError: for a tensor on no rung, or two of one shared name.
        """
        # (shared name, key of the row) -> name in the key -> name of the tensor
        found: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        for given in names:
            part, key, shared = self._find(given)
            found.setdefault((shared, key), {})[part] = given
        sources: dict[str, Source] = {}
        for (shared, key), parts in found.items():
            row = self._rows.get(key)
            mine = tuple(parts[part] for part in key if part in parts)
            one_will_do = row is not None and row.layout.sums and not _is_of_terms(mine[0])
            if len(mine) == len(key) or one_will_do:
                pairs = {shared: Source(mine, row)}
            else:
                pairs = {name: Source((name,)) for name in mine}
            for name, source in pairs.items():
                if name in sources:
                    raise UsageError(
                        f"{sources[name].given[0]!r} and {source.given[0]!r} are both named "
                        f"{name!r}; allowed: one tensor of a name"
                    )
                sources[name] = source
        return sources

    def in_shared_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is known of tensors, each by itself, by their shared names."""
        return {
            shared: value for given, value in values.items() for shared in self.sources([given])
        }

    def _find(self, given: str) -> tuple[str, tuple[str, ...], str]:
        """Return (name in the row's key, the key, shared name); its own name if none fits."""
        call = _CALL.search(given)  # the number of a further call stays at the end
        once = given if call is None else given[: call.start()] + given[call.end() :]
        for whole, number in ((given, ""), (once, call.group() if call else "")):
            if whole in self._whole:
                key = self._whole[whole]
                return whole, key, self._rows[key].name + number
            rung, _, part = whole.partition("/")
            if part in self._parts:
                key = self._parts[part]
                return part, key, f"{rung}/{self._rows[key].name}{number}"
        check_name(given)
        rung, _, rest = given.partition("/")
        if rung == "optimizer":  # optimizer/PARAMETER/SLOT: both are renamed
            parameter, _, slot = rest.rpartition("/")
            if parameter in self._parts and (self._slots is None or slot in self._slots):
                row = self._rows[self._parts[parameter]]
                slot = slot if self._slots is None else self._slots[slot]
                return parameter, self._parts[parameter], f"{rung}/{row.name}/{slot}"
        return given, (given,), given

    def unused(self, sources: Mapping[str, Source]) -> list[str]:
        """Return the keys of the rows that gave none of some shared tensors."""
        used = {id(each.row) for each in sources.values()}
        keys = [key for key, row in self._rows.items() if id(row) not in used]
        return sorted(" + ".join(key) for key in keys)


def _is_of_terms(name: str) -> bool:
    return name.split("/", 1)[0] in _OF_TERMS


def _on_rung(name: str) -> bool:
    return name == "gradient_norm" or ("/" in name and name.split("/", 1)[0] in RUNGS)
