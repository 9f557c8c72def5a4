"""Which tensors of which steps of a pair are compared: those that both sides have."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.trace.reader import Trace, View
from parity.trace.reduced import Reduced
from parity.trace.rungs import fits, rung_of
from parity.trace.side import labels_of

Names = frozenset[str]


@dataclass(frozen=True)
class Choice:
    """What a user chose of a pair of traces.

    Attributes:
      include: patterns of names; only tensors that fit one are compared. Empty: all.
      exclude: patterns of names that are left out.
      steps: which steps; None: all.
      allow_missing: whether the two match although one has tensors that the other lacks.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    steps: range | None = None
    allow_missing: bool = False

    def takes(self, name: str) -> bool:
        """Return whether a tensor is compared."""
        included = not self.include or fits(name, *self.include)
        return included and not fits(name, *self.exclude)


WHOLE = Choice()


class _Part(View):
    """Some tensors of some steps of a trace.

    Args:
      names: step -> the names of its tensors, or None: all of them.
    """

    def __init__(self, trace: Trace, names: Mapping[int, Names | None]):
        super().__init__(trace)
        self._names = names

    def lines(self) -> Iterator[dict[str, Any]]:
        return (line for line in self._whole.lines() if line["step"] in self._names)

    def everything(
        self, chosen: Container[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for step, tensors in self._whole.everything(self._names if chosen is None else chosen):
            names = self._names[step]
            yield step, {n: each for n, each in tensors.items() if names is None or n in names}


def chosen(traces: Sequence[Trace], choice: Choice) -> tuple[list[Trace], dict[str, list[str]]]:
    """Return the parts of two traces that can be compared, and what only one side has.

    Returns:
      The traces, with the tensors of each step that both have; and label -> the names of the
      chosen tensors that only this side has in some step that both recorded.

    Raises:
      UsageError: if nothing is left to compare, or an index cannot be read.
    """
    labels = labels_of([trace.side for trace in traces], [trace.folder for trace in traces])
    known: dict[Names, Names] = {}  # most steps have the same names: kept once
    held = [
        {
            line["step"]: known.setdefault(names, names)
            for line in trace.lines()
            for names in [frozenset(line["digests"])]
        }
        for trace in traces
    ]
    _check_fits(choice, dict(zip(labels, held, strict=True)))
    taken = {names: frozenset(filter(choice.takes, names)) for names in known}
    found = [
        {
            step: taken[names]
            for step, names in each.items()
            if choice.steps is None or step in choice.steps
        }
        for each in held
    ]
    steps = [step for step in found[0] if step in found[1]]
    pairs = dict.fromkeys((found[0][step], found[1][step]) for step in steps)
    only: dict[str, list[str]] = {}
    for label, place in zip(labels, (0, 1), strict=True):
        names = {name for pair in pairs for name in pair[place] - pair[1 - place]}
        names -= _unchanged(traces[place], names, steps)
        if names:
            only[label] = sorted(names)
    common = {step: _common(known, found[0][step], found[1][step]) for step in steps}
    for step in steps:
        if not common[step]:
            told = "; ".join(f"only {label} has {', '.join(n)}" for label, n in only.items())
            raise UsageError(f"step {step}: no tensor to compare{f': {told}' if told else ''}")
    parts = []
    for trace, mine in zip(traces, found, strict=True):
        part = _Part(trace, {step: common.get(step) for step in mine})
        if choice.include or choice.exclude:  # what was declared for the rest does not apply
            names = {name for each in common.values() for name in each}
            part.header["tolerances"] = _that_fit(part.header["tolerances"], names)
        parts.append(part)
    return list(parts), only


def _check_fits(choice: Choice, held: Mapping[str, Mapping[int, Names]]) -> None:
    """Check that there is something of all that a user chose.

    Args:
      held: label -> step -> the names of its tensors.
    """
    every = {name for steps in held.values() for names in steps.values() for name in names}
    for option, patterns in (("include", choice.include), ("exclude", choice.exclude)):
        for pattern in patterns:
            if every and not any(fits(name, pattern) for name in every):
                raise UsageError(f"{option} of {pattern!r}: no tensor has such a name")
    for label, steps in held.items():
        if steps and choice.steps is not None and not any(n in choice.steps for n in steps):
            raise UsageError(
                f"no step of {label} is among those asked for; allowed: of {min(steps)} to "
                f"{max(steps)}"
            )


def _unchanged(trace: Trace, names: Collection[str], steps: Collection[int]) -> set[str]:
    """Return the clipped gradients among some names that nothing was clipped from."""
    found = {name for name in names if name.startswith("clipped_")}
    for _, tensors in trace.everything(steps) if found else ():
        for name in found & tensors.keys():
            clipped = tensors[name]
            gradient = tensors.get(name.removeprefix("clipped_"), np.empty(0))
            if isinstance(clipped, Reduced) and isinstance(gradient, Reduced):
                equal = clipped.crc32 == gradient.crc32 != ""
            else:
                equal = np.array_equal(clipped, gradient)
            found -= set() if equal else {name}
    return found


def _common(known: dict[Names, Names], a: Names, b: Names) -> Names:
    """Return the names that both have, as an object that is kept once."""
    both = a & b
    return known.setdefault(both, both)


def _that_fit(tolerances: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {
        key: each
        for key, each in tolerances.items()
        if any(rung_of(name) == key or fits(name, key) for name in names)
    }
