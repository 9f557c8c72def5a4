"""Proposes what of one recorded trace is what of another.

Units are paired by the order in which they were executed and by their kind; the kind decides
the layout; shapes must fit; values confirm, where both sides had the same weights.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from reprlib import repr as shortened
from typing import Any

import numpy as np

from parity.align.bare import (
    assigned,
    distance,
    fits_of,
    group_of,
    grouped,
    natural,
    targets_of,
)
from parity.align.kinds import (
    JOINED,
    RECURRENT,
    Module,
    Part,
    Unit,
    fused,
    is_known,
    joint,
    kind_of_module,
    units_of,
)
from parity.align.layout import Layout
from parity.align.mapping import NameMapping, Parts, Row
from parity.align.optimizer_state import ALONE, HOLDS_RATE, slots_of
from parity.base.errors import UsageError
from parity.trace.reader import Trace
from parity.trace.rungs import fits

Tensors = Mapping[str, np.ndarray]

# the last that a trace names is its own
FRAMEWORKS = ("torch", "paddle", "jax", "tensorflow", "keras")
# the largest distance of outputs that confirms them, of their largest magnitude
_AGREE = 1e-4
_SCORES = {True: 10, False: 1}  # of a unit with parameters, and of one without
_IMAGES = ("conv", "convtranspose", "maxpool", "avgpool")
_NO_IMAGES = ("linear", "attention", "layernorm", "embedding", *RECURRENT)
# Counters and the like, which the frameworks keep in forms of their own.
_LEFT_OUT = {
    "torch": ("*/step", "*num_batches_tracked"),
    "paddle": ("*/beta[12]_pow_acc", "*_dropout_state"),
    **dict.fromkeys(("jax", "tensorflow"), ("model/*",)),
    "keras": ("model/iteration", "model/learning_rate", "*seed_generator_state"),
}


def framework_of(trace: Trace) -> str:
    """Return the framework of a watched training, one of `FRAMEWORKS`.

    Raises:
      UsageError: for a trace that does not say what its modules are.
    """
    versions = trace.header["versions"]
    found = [each for each in reversed(FRAMEWORKS) if each in versions]
    if not found or "modules" not in trace.header.get("facts", {}):
        raise UsageError(
            f"{trace.folder}: does not say what its modules are; allowed: a trace that "
            f"the watch of {', '.join(f'parity.{each}' for each in FRAMEWORKS)} recorded"
        )
    return found[0]


@contextmanager
def facts_of(traces: Sequence[Trace]) -> Iterator[None]:
    """Turn whatever goes wrong with the modules and optimisers of headers into bad input.

    Their settings are of any framework, and of any type; a file may have been damaged.

    Raises:
      UsageError: naming the traces.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {shortened(str(error))}"
        raise UsageError(
            f"{' and '.join(str(each.folder) for each in traces)}: cannot be aligned by what "
            f"trace.json says of modules or optimiser ({told}); allowed: what a watch writes"
        ) from error


class _Side:
    """What a trace says of its model.

    Attributes:
      framework: one of `FRAMEWORKS`.
      tensors: those of the first recorded step.
      units: in the order of execution.
      bare: whether it does not know its modules: a function, a graph, variables.
    """

    def __init__(self, trace: Trace):
        self.framework = framework_of(trace)
        self._facts = trace.header["facts"]
        numbers = trace.numbers()
        self.tensors = trace.read_all(numbers[0]) if numbers else {}
        if not any(name.startswith("initial/") for name in self.tensors):
            raise UsageError(
                f"{trace.folder}: lacks the initial weights; allowed: a trace that was watched "
                "from its first step on"
            )
        self.shapes = {name: each.shape for name, each in self.tensors.items()}
        self.shapes |= {
            name.removeprefix("initial/"): each.shape
            for name, each in self.tensors.items()
            if name.startswith("initial/")
        }
        self._modules = {each["name"]: each for each in self._facts["modules"]}
        self.units = list(self._units())
        self.bare = self.framework in ("jax", "tensorflow") and not any(
            unit.known and unit.settings and unit.parameters for unit in self.units
        )
        if self.bare:
            names = [*self.of("initial")]
            self.units = grouped(
                sorted(names, key=natural) if self.framework == "jax" else names
            )
        if not self.units:
            raise UsageError(
                f"{trace.folder}: has no output of a module whose kind is known in its first "
                "step; allowed: a trace of modules with the rung forward, or a map by hand"
            )

    @property
    def outputs(self) -> list[str]:
        """Return the outputs of the units."""
        parts = [part for unit in self.units for part in unit.outputs.values()]
        return [name for part in parts for name in part.names]

    @property
    def others(self) -> list[str]:
        """Return the outputs of modules that are no units."""
        used = self.outputs
        return [n for n in self.of("forward") if "#" not in n and n not in used]

    @property
    def read(self) -> dict[int, int]:
        """Return place of a batch normalisation -> that of the convolution which it reads.

        It is known by its values: they follow those that are read, channel by channel.
        """
        found: dict[int, int] = {}
        for i, norm in enumerate(self.units):
            for j in range(i - 1, -1, -1) if norm.kind == "batchnorm" else ():
                conv = self.units[j]
                if conv.kind == "conv" and _follows(self._output(norm), self._output(conv)):
                    found[i] = j
                    break
        return found

    def branches(self) -> Iterator[list[int]]:
        """Yield the places of layers of one shape that may run in any order.

        Such linear layers read the same input: one input explains what both return. Such a
        convolution reads what was there before another one ran, or follows one that does.
        """
        placed = [i for i, unit in enumerate(self.units) if unit.parameters]
        for places in self._alike("conv").values():
            branch: list[int] = []
            for j in places[1:]:
                earlier, read = [i for i in places if i < j], self._read_at(j)
                if read is None:
                    continue
                beside = [i for i in earlier if self._at(i) > read]
                if beside or earlier[-1] in branch:
                    branch = sorted({*branch, *beside, j})
            yield branch
        for shape, places in self._alike("linear").items():
            if len(shape) != 2:
                continue
            (outputs, inputs), branch = shape, places[:1]
            for i, j in pairwise(places):
                # more inputs than outputs of both: some input always explains them
                tells = 2 * outputs > inputs or placed.index(j) == placed.index(i) + 1
                if tells and self._read_the_same(self.units[i], self.units[j]):
                    branch.append(j)
                    continue
                yield branch
                branch = [j]
            yield branch

    def _alike(self, kind: str) -> dict[tuple[int, ...], list[int]]:
        """Return shape of the weight -> the places of the layers of a kind that have it."""
        found: dict[tuple[int, ...], list[int]] = {}
        for place, unit in enumerate(self.units):
            weight = self.value("initial", unit.parameters.get("weight"))
            if unit.kind == kind and weight is not None:
                found.setdefault(weight.shape, []).append(place)
        return found

    def _at(self, place: int) -> int:
        """Return where a unit's output is among all outputs; behind them if it has none."""
        part, names = self.units[place].outputs.get("output"), self.of("forward")
        return names.index(part.names[0]) if part else len(names)

    def _read_at(self, place: int) -> int | None:
        """Return where the output is that a convolution reads: -1 for what the model was given.

        It is known by its values, at a place in the middle; None: none of them explains it.
        """
        unit = self.units[place]
        weight = self.value("initial", unit.parameters["weight"])
        bias = self.value("initial", unit.parameters.get("bias"))
        output = self._output(unit)
        if weight is None or output is None or weight.ndim != 4 or output.ndim != 4:
            return None
        last = self._channels_last(unit.settings)
        names = [f"forward/{each}" for each in self.of("forward")[: self._at(place)]]
        given = [f"batch/{each}" for each in self.batch() if each in self.of("batch")]
        row, column = (size // 2 for size in output.shape[2:])
        expected = output[0, :, row, column] - (0 if bias is None else bias)
        for at, name in enumerate([*given, *names], -len(given)):
            x = self.tensors[name]
            x = np.moveaxis(x, -1, 1) if last and x.ndim == 4 else x
            if x.ndim != 4 or x.shape[:2] != (len(output), weight.shape[1]):
                continue
            if _convolves(x[0], weight, (row, column), output.shape[2:], expected):
                return max(at, -1)
        return None

    def _read_the_same(self, *two: Unit) -> bool:
        weights, outputs = [], []
        for unit in two:
            weight = self.value("initial", unit.parameters["weight"])
            output = self._output(unit)
            if weight is None or output is None:
                return False
            bias = self.value("initial", unit.parameters.get("bias"))
            rows = output.reshape(-1, output.shape[-1])[:64]
            outputs.append((rows if bias is None else rows - bias).T)
            weights.append(weight)
        if outputs[0].shape != outputs[1].shape:
            return False
        both, returned = (
            np.concatenate(each).astype(np.float32) for each in (weights, outputs)
        )
        # least squares by normal equations: 4096 x 4096 in seconds, not in a minute
        square = both.T @ both
        square.flat[:: len(square) + 1] += 1e-6 * np.trace(square) / len(square) + 1e-30
        left = returned - both @ np.linalg.solve(square, both.T @ returned)
        return bool(np.linalg.norm(left) <= 1e-3 * np.linalg.norm(returned))

    def _output(self, unit: Unit) -> np.ndarray | None:
        return self.value("forward", unit.outputs.get("output"))

    def value(self, rung: str, part: Part | None) -> np.ndarray | None:
        """Return a parameter, or what a unit returned first, in the shared layout."""
        start = rung and f"{rung}/"
        given = [self.tensors.get(start + name) for name in (part.names if part else ())]
        if part is None or any(each is None for each in given):
            return None
        return Layout.read(part.layout).apply([each for each in given if each is not None])

    @property
    def rule(self) -> tuple[str, str]:
        """Return the framework and the kind of the optimiser."""
        of_keras = self.framework == "tensorflow" and "model/iteration" in self.of("optimizer")
        kind = str(self._facts.get("optimizer", {}).get("kind", "")).lower()
        return "keras" if of_keras else self.framework, kind

    @property
    def slots(self) -> dict[str, str]:
        """Return meaning -> slot of the optimiser."""
        if self.rule == HOLDS_RATE:
            return {}
        there = {name.rpartition("/")[2] for name in self.of("optimizer")}
        return {each: slot for each, slot in slots_of(*self.rule).items() if slot in there}

    def alone(self, other: "_Side") -> list[str]:
        """Return patterns of the slots that another framework does not keep in this form."""
        if self.framework == other.framework:
            return []
        slots = list(ALONE.get(self.rule, ()))
        if other.rule == HOLDS_RATE:
            slots += filter(None, [self.slots.get("momentum")])
        return [f"optimizer/*/{slot}" for slot in slots]

    @property
    def left_out(self) -> list[str]:
        """Return patterns of names that have no meaning on another side."""
        names = [each.partition("/")[2] for each in self.shapes if "/" in each]
        patterns = [
            pattern
            for pattern in _LEFT_OUT[self.framework]
            if any(fits(name, pattern) for name in names)
        ]
        return patterns + [
            name
            for name in self.of("initial")
            if self.tensors[f"initial/{name}"].dtype.kind in "iu" and not fits(name, *patterns)
        ]

    def batch(self) -> dict[str, Part]:
        """Return what the model was given."""
        # one of the user's own, such as a normalisation of the input, does not tell
        first = next((unit for unit in self.units if unit.known), self.units[0])
        last = first.kind in ("conv", "convtranspose") and self._channels_last(first.settings)
        found = {}
        for name in (each for each in self.of("batch") if "#" not in each):
            rank = len(self.shapes[f"batch/{name}"])
            axes = ({"axes": [0, rank - 1, *range(1, rank - 1)]},) if last and rank > 2 else ()
            found[name] = Part((f"batch/{name}",), axes)
        return found

    def _channels_last(self, settings: Mapping[str, Any]) -> bool:
        form = str(settings.get("data_format", ""))
        last = form == "channels_last" or (form.startswith("N") and form.endswith("C"))
        return last or self.framework == "jax"

    def of(self, rung: str) -> list[str]:
        start = f"{rung}/"
        return [each.removeprefix(start) for each in self.tensors if each.startswith(start)]

    def _units(self) -> Iterator[Unit]:
        """Yield the units in the order in which they were first called."""
        channels_last, given = False, ()
        for name in self._called():
            module = self._modules[name]
            kind = kind_of_module(module)
            if kind in _IMAGES:
                channels_last = self._channels_last(module["settings"])
            images = given if channels_last else ()
            if kind in _NO_IMAGES:
                channels_last = False
            yield from units_of(
                Module(
                    name,
                    kind,
                    self.framework,
                    self._parameters(name, whole=self._is_unit(name)),
                    module["settings"],
                    self.shapes,
                    images,
                    channels_last,
                )
            )
            shape = self.shapes.get(f"forward/{name}", ())
            given = shape if len(shape) > 2 else given

    def _called(self) -> list[str]:
        """Return the modules that are units, or hold parameters beside those of units."""
        names = sorted(self._modules, key=len, reverse=True)
        found = dict[str, None]()
        for output in self.of("forward"):
            name = next((n for n in names if f"{output}/".startswith((f"{n}/", f"{n}#"))), None)
            if name is not None and not any(map(self._is_unit, self._around(name))):
                found[name] = None
        return [n for n in found if self._is_unit(n) or self._modules[n]["parameters"]]

    def _is_unit(self, name: str) -> bool:
        return is_known(kind_of_module(self._modules[name]))

    def _around(self, name: str) -> list[str]:
        """Return the modules that a module is inside of."""
        mark = "/" if self.framework == "keras" else "."
        parts = name.split(mark)
        around = [mark.join(parts[:end]) for end in range(1, len(parts))]
        return [each for each in ("model", *around) if each in self._modules and each != name]

    def _parameters(self, name: str, *, whole: bool) -> dict[str, str]:
        mark = "/" if self.framework == "keras" else "."
        found: dict[str, str] = {}
        for each, module in self._modules.items():
            inside = each == name or (whole and name in self._around(each))
            if not inside:
                continue
            start = "" if each == name else each.removeprefix(name + mark) + mark
            found |= {
                start + role: tensor
                for role, tensor in module["parameters"].items()
                if f"initial/{tensor}" in self.tensors
            }
        return found


def propose(traces: Sequence[Trace]) -> NameMapping:
    """Return what of one trace seems to be what of another.

    Raises:
      UsageError: if a trace does not hold what that takes.
    """
    with facts_of(traces):
        a, b = (_Side(trace) for trace in traces)
        theirs = b.slots
        slots = {own: (own, theirs[n]) for n, own in a.slots.items() if n in theirs}
    kinds = [{unit.kind for unit in side.units} for side in (a, b)]
    if ("attention" in kinds[0]) != ("attention" in kinds[1]):
        a.units, b.units = fused(a.units), fused(b.units)
    proposal = _Proposal(a, b)
    rows = [*proposal.batch(), *proposal.rows(), *proposal.model()]
    labels = traces[0].side.framework, traces[1].side.framework
    return NameMapping(labels, rows, slots, _left_out(rows, (a, b)))


def _left_out(rows: Sequence[Row], sides: tuple[_Side, _Side]) -> tuple[list[str], list[str]]:
    """Return for each side the names that have no meaning on the other."""
    found: tuple[list[str], list[str]] = ([], [])
    for place, side in enumerate(sides):
        used = {n for row in rows for both in row.outputs.values() for n in both[place].names}
        alone = [name for name in (*side.outputs, *side.others) if name not in used]
        fed = side.of("batch")  # of a name like that, the output alone is meant
        alone = [
            each
            for name in alone
            for each in (
                (f"forward/{name}", f"activation_gradient/{name}") if name in fed else (name,)
            )
        ]
        other = sides[1 - place]
        if side.bare or other.bare:  # what it was not asked to record, or has beside the model
            alone += [n for n in map("batch/{}".format, side.batch()) if n not in used]
            if not other.of("activation_gradient") and side.of("activation_gradient"):
                alone.append("activation_gradient/*")
            for both in (each for row in rows for each in row.parameters.values()):
                mine, theirs = (
                    [
                        n
                        for n in map("gradient/{}".format, both[i].names)
                        if n in sides[i].tensors
                    ]
                    for i in (place, 1 - place)
                )
                alone += mine if not theirs else []  # as of a sparse one
        found[place].extend([*side.left_out, *side.alone(other), *alone])
        for row in rows:
            for both in row.outputs.values():
                name, partner = (
                    f"activation_gradient/{both[each].names[0]}" for each in (place, 1 - place)
                )
                if name not in side.tensors or partner in other.tensors:
                    continue
                # of an output that nothing uses, some frameworks have a gradient of zero; and
                # what is a last state on one side may be the end of a sequence on the other
                if row.kind in RECURRENT or not side.tensors[name].any():
                    found[place].append(name)
    return found


class _Proposal:
    """The pairing of two sides."""

    def __init__(self, a: _Side, b: _Side):
        self._a, self._b = a, b
        self._taken: tuple[set[str], set[str]] = (set(), set())
        self._shapes: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def rows(self) -> list[Row]:
        """Return a row for each pair of units."""
        if self._a.bare or self._b.bare:
            rows = list(self._of_bare())
            return [*rows, *self._tapped(rows)]
        units = self._a.units, self._b.units
        pairs = {i: (j, only) for i, j, only in _aligned(*units, self._score)}
        pairs |= self._alike(*units)
        for branch in self._a.branches():
            pairs |= self._in_any_order({i: pairs[i][0] for i in branch if i in pairs})
        # branches may run in another order, and their normalisations are often alike
        read, normed = self._a.read, {j: i for i, j in self._b.read.items()}
        followed = {
            norm: (normed[pairs[conv][0]], pairs[conv][1])
            for norm, conv in read.items()
            if conv in pairs and pairs[conv][0] in normed
        }
        taken = {j for j, _ in followed.values()}
        pairs = {i: each for i, each in pairs.items() if each[0] not in taken} | followed
        rows = [
            self._row(units[0][i], units[1][j], i, j, only)
            for i, (j, only) in sorted(pairs.items())
        ]
        return [*rows, *self._of_own()]

    def _of_bare(self) -> Iterator[Row]:
        """Yield a row for each unit of the one side, by shapes and values of the other's."""
        known, bare, flip = self._known_and_bare()
        names = [
            n for unit in bare.units for part in unit.parameters.values() for n in part.names
        ]
        shapes = [bare.shapes[name] for name in names]
        targets = targets_of(known.units, known.shapes, shapes)
        found = assigned(targets, fits_of(targets, known.tensors, bare.tensors, names))
        found.sort(key=lambda each: each[0].target)
        for place, unit in enumerate(known.units):
            of_unit = [each for each in found if targets[each[0].target].unit == place]
            if not of_unit:
                continue
            names = [fit.bare.names[0] for fit, _, _ in of_unit]
            groups = [group_of(name)[0] or name for name in names]
            pair = unit.name, " ".join(dict.fromkeys(groups))
            parameters: Parts = {}
            why: dict[str, list[str]] = {}
            for fit, _, reason in of_unit:
                both = (fit.bare, fit.known) if flip else (fit.known, fit.bare)
                role = targets[fit.target].role
                first = both[0].names
                shared = first[0] if len(first) == 1 else f"{pair[0]}.{role}".replace(" ", ".")
                parameters[shared] = both
                if reason:
                    why.setdefault(reason, []).append(shared)
            told = [f"{', '.join(names)}: {reason}" for reason, names in why.items()]
            equal = all(fit.equal for fit, _, _ in of_unit)
            told.append(f"initial weights {'equal' if equal else 'differ'}")
            distances = [fit.distance for fit, _, _ in of_unit if fit.distance is not None]
            if distances and equal:
                word = "agree" if all(fit.confirmed for fit, _, _ in of_unit) else "differ"
                told.append(f"first gradients {word} ({max(distances):.1e})")
            sure = all(each for _, each, _ in of_unit)
            pair = pair[::-1] if flip else pair
            yield Row(pair, unit.kind, sure, "; ".join(told), parameters, {})

    def _known_and_bare(self) -> tuple[_Side, _Side, bool]:
        """Return the two sides, and whether the first is the one of unknown modules."""
        flip = not self._b.bare
        return (self._b, self._a, flip) if flip else (self._a, self._b, flip)

    def _tapped(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield a row for each output that values, or a name, tell to be one of the other's."""
        known, bare, flip = self._known_and_bare()
        outputs = {n: Part((n,)) for n in known.of("forward") if "#" not in n and n != "model"}
        named: dict[str, str] = {}  # group of parameters -> the unit's output
        for unit in known.units:
            for part in unit.outputs.values():
                outputs[part.names[0]] = part
                for row in rows:
                    if row.units[flip] == unit.name:
                        named[row.units[not flip]] = part.names[0]
        for tap in (n for n in bare.of("forward") if "#" not in n and n != "model"):
            fits = [
                (name, part, other, distance(mine, theirs))
                for name, part in outputs.items()
                for other in _of_output(tap, bare.shapes[f"forward/{tap}"])
                if (mine := known.value("forward", part)) is not None
                and (theirs := bare.value("forward", other)) is not None
                and mine.shape == theirs.shape
            ]
            near = [each for each in fits if each[3] is not None and each[3] <= _AGREE]
            for name, part, other, far in near or [e for e in fits if e[0] == named.get(tap)]:
                del outputs[name]
                both, units = (
                    ((other, part), (tap, name)) if flip else ((part, other), (name, tap))
                )
                why = "" if near else "paired by its name; "
                why += "outputs differ" if far is None else _agreement(far)
                yield Row(units, "output", bool(near), why, {}, {units[0]: both})
                break

    def _of_own(self) -> Iterator[Row]:
        """Yield a row for each parameter that only modules of the user's own hold, in order."""
        left: list[list[Unit]] = []
        for side, taken in zip((self._a, self._b), self._taken, strict=True):
            left.append([])
            for unit in side.units:
                if unit.known and is_known(unit.kind):
                    continue
                names = [n for part in unit.parameters.values() for n in part.names]
                shapes = [tuple(size for size in side.shapes[n] if size > 1) for n in names]
                for name, shape in zip(names, shapes, strict=True):
                    whole = {"reshape": [list(side.shapes[name]), list(shape)]}
                    part = Part((name,), (whole,) if shape != side.shapes[name] else ())
                    # order says neither which of two is which nor whether a square is turned
                    known = shapes.count(shape) == 1 and len(set(shape)) == len(shape)
                    if name not in taken:
                        own = Unit(f"{unit.name} {name}", "parameter", {"own": part}, {}, known)
                        left[-1].append(own)
        even = len(left[0]) == len(left[1])
        pairs = {i: (j, only) for i, j, only in _aligned(left[0], left[1], self._score)}
        for i, (j, only) in sorted((pairs | self._alike(left[0], left[1])).items()):
            yield self._row(left[0][i], left[1][j], i, j, only and even)

    def _in_any_order(self, pairs: Mapping[int, int]) -> dict[int, tuple[int, bool]]:
        """Return the pairs of layers whose order says nothing: by the letters of q, k, v."""
        if len(pairs) < 2:
            return {}
        first = {_letter(self._a.units[i]): i for i in pairs}
        second = {_letter(self._b.units[j]): j for j in pairs.values()}
        if first.keys() == second.keys() and len(first) == len(pairs):
            return {i: (second[letter], True) for letter, i in first.items()}
        return {i: (j, False) for i, j in pairs.items()}

    def _alike(self, a: Sequence[Unit], b: Sequence[Unit]) -> dict[int, tuple[int, bool]]:
        """Return the pairs of units whose parameters fit no other, whatever their order."""
        scores = [[self._score(one, other) for other in b] for one in a]
        fits = np.array(scores, int).reshape(len(a), len(b)) == _SCORES[True]
        return {
            int(i): (int(j), True)
            for i, j in np.argwhere(fits)
            if fits[i].sum() == fits[:, j].sum() == 1
        }

    def batch(self) -> list[Row]:
        a, b = self._a.batch(), self._b.batch()
        pairs = list(zip(a.items(), b.items(), strict=True)) if len(a) == len(b) else []
        if self._a.bare or self._b.bare:
            pairs = self._fed() or pairs
        found = []
        for (name, mine), (other, theirs) in pairs:
            # a model may take images in the other layout, and turn them around itself
            as_given = Part(mine.names), Part(theirs.names)
            if np.array_equal(*self._values("", *as_given)):
                mine, theirs = as_given
            first, second = self._values("", mine, theirs)
            fits = first.shape == second.shape
            same = fits and bool(np.array_equal(first, second))
            why = "the values are equal" if same else "the values differ"
            if not fits:
                why = f"shapes {list(first.shape)} and {list(second.shape)}"
            parts = {f"batch/{name}": (mine, theirs)}
            found.append(Row((name, other), "batch", fits, why, {}, parts))
        return found

    def _fed(self) -> list[Any]:
        """Return what both are fed: one of them may have the rest outside its model."""
        known, bare, flip = self._known_and_bare()
        return [
            ((fed, each), (name, part)) if flip else ((name, part), (fed, each))
            for name, part in known.batch().items()
            for fed in bare.batch()
            for each in _of_output(f"batch/{fed}", bare.shapes[f"batch/{fed}"])
            if (mine := known.value("", part)) is not None
            and (theirs := bare.value("", each)) is not None
            and np.array_equal(mine, theirs)
        ]

    def model(self) -> list[Row]:
        """Return a row for what the whole models return."""
        if "model" not in self._a.others or "model" not in self._b.others:
            return []
        part = Part(("model",))
        first, second = self._values("forward/", part, part)
        fits = first.shape == second.shape
        distance = self._outputs_distance({"model": (part, part)}) if fits else None
        why = "shapes differ" if distance is None else _agreement(distance)
        return [Row(("model", "model"), "model", fits, why, {}, {"model": (part, part)})]

    def _score(self, a: Unit, b: Unit) -> int:
        """Return how much speaks for a pair; 0: it is none."""
        if a.kind != b.kind:
            return 0
        if not a.parameters and not b.parameters:
            return _SCORES[False]
        parts, _ = joined(a, b)
        shapes = [(self._shape(0, one), self._shape(1, other)) for one, other in parts.values()]
        fits = bool(shapes) and all(
            mine is not None and mine == theirs for mine, theirs in shapes
        )
        return _SCORES[True] if fits else 0

    def _shape(self, place: int, part: Part) -> tuple[int, ...] | None:
        """Return the shape in the shared layout; None if the layout does not fit."""
        known, side = self._shapes[place], (self._a, self._b)[place]
        key = repr(part)
        if key not in known:
            given = [np.broadcast_to(np.int8(0), side.shapes.get(n, ())) for n in part.names]
            try:
                known[key] = Layout.read(part.layout).apply(given).shape
            except ValueError:
                known[key] = None
        found: tuple[int, ...] | None = known[key]
        return found

    def _row(self, a: Unit, b: Unit, i: int, j: int, only: bool) -> Row:
        parts, alone = joined(a, b)
        shared = a.name.replace(" ", ".")
        parameters: Parts = {}
        for role, (one, other) in parts.items():
            if self._taken[0] & set(one.names) or self._taken[1] & set(other.names):
                continue  # tied: it has its row already
            self._taken[0].update(one.names)
            self._taken[1].update(other.names)
            name = one.names[0] if len(one.names) == 1 else f"{shared}.{role}"
            parameters[name] = one, other
        outputs = {
            mine.names[0]: (mine, theirs)
            for role, mine in a.outputs.items()
            if (theirs := b.outputs.get(role)) is not None and self._output_fits(mine, theirs)
        }
        same = self._weights(parameters)
        distance = self._outputs_distance(outputs)
        why = [f"units {i + 1} and {j + 1} in the order of execution"]
        if not only:
            why.append("others would fit as well")
        if alone:
            why.append(f"only one side has {', '.join(alone)}")
        if not a.known:
            why.append("a kind whose layouts are not known")
        if parameters:
            why.append("shapes fit")
            why.append("initial weights equal" if same else "initial weights differ")
        if distance is not None:
            why.append(_agreement(distance))
        confirmed = distance is not None and distance <= _AGREE and (same or not parameters)
        sure = (only and a.known and b.known and not alone) or confirmed
        return Row((a.name, b.name), a.kind, sure, "; ".join(why), parameters, outputs)

    def _output_fits(self, a: Part, b: Part) -> bool:
        try:
            first, second = self._values("forward/", a, b)
        except ValueError:
            return False
        return first.shape == second.shape

    def _values(self, start: str, a: Part, b: Part) -> tuple[np.ndarray, np.ndarray]:
        one, other = (
            Layout.read(part.layout).apply([side.tensors[start + name] for name in part.names])
            for side, part in ((self._a, a), (self._b, b))
        )
        return one, other

    def _weights(self, parameters: Parts) -> bool:
        return all(
            np.array_equal(*self._values("initial/", one, other))
            for one, other in parameters.values()
        )

    def _outputs_distance(self, outputs: Parts) -> float | None:
        """Return max|a - b| / max|a| of what two units returned first; None if nothing."""
        found = [self._values("forward/", *both) for both in outputs.values()]
        if not found:
            return None
        with np.errstate(all="ignore"):
            return float(
                max(
                    np.abs(a - b).max(initial=0) / max(np.abs(a).max(initial=0), 1e-300)
                    for a, b in found
                )
            )


def _of_output(name: str, shape: tuple[int, ...]) -> Iterator[Part]:
    """Yield an output as it is, and with its time first or its channels last."""
    yield Part((name,))
    if axes := {3: [1, 0, 2], 4: [0, 3, 1, 2]}.get(len(shape)):
        yield Part((name,), ({"axes": axes},))


def _letter(unit: Unit) -> str:
    """Return the first letter of a layer's own name: q of query, of q_proj."""
    return re.split(r"[./]", unit.name)[-1][:1]


def _follows(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether each channel, of axis 1, is that of another, moved and scaled."""
    if a is None or b is None or a.shape != b.shape:
        return False
    a, b = (np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in (a, b))
    a, b = (each - each.mean(1, keepdims=True) for each in (a, b))
    products = np.sum(a * b, 1) ** 2
    return bool(np.all(products >= 0.999 * np.sum(a * a, 1) * np.sum(b * b, 1)))


def _convolves(
    x: np.ndarray,
    weight: np.ndarray,
    place: tuple[int, int],
    sizes: tuple[int, ...],
    expected: np.ndarray,
) -> bool:
    """Return whether a convolution of an image returns some channels at a place.

    Args:
      x: [in, height, width].
      weight: [out, in, height, width].
      sizes: the height and width of what it returns.
      expected: [out].
    """
    kernel = weight.shape[2:]
    starts = [at * max(1, round(x.shape[i + 1] / sizes[i])) for i, at in enumerate(place)]
    for pads in np.ndindex(*kernel):  # whatever the padding is
        top, left = (start - pad for start, pad in zip(starts, pads, strict=True))
        part = x[:, max(top, 0) : top + kernel[0], max(left, 0) : left + kernel[1]]
        if min(top, left) < 0 or part.shape[1:] != kernel:
            continue
        found = weight.reshape(len(weight), -1) @ part.ravel()
        if np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max():
            return True
    return False


def _agreement(distance: float) -> str:
    return f"outputs {'agree' if distance <= _AGREE else 'differ'} ({distance:.1e})"


def joined(a: Unit, b: Unit) -> tuple[Parts, list[str]]:
    """Return role -> parameter of both sides, and the roles that only one side has.

    Where one side has several parameters for one of the other, they are joined.
    """
    parts = {
        role: (a.parameters[role], b.parameters[role])
        for role in a.parameters
        if role in b.parameters
    }
    done = set(parts)
    for role, (terms, _) in JOINED.items():
        for place, (one, other) in enumerate(((a, b), (b, a))):
            if role not in one.parameters or role in other.parameters or role in done:
                continue
            whole = joint(role, other)
            if whole is None:
                continue
            pair = one.parameters[role], whole
            parts[role] = pair if place == 0 else pair[::-1]
            done |= {role, *terms}
    return parts, sorted({*a.parameters, *b.parameters} - done)


def _aligned(
    a: Sequence[Unit], b: Sequence[Unit], score: Any
) -> Iterator[tuple[int, int, bool]]:
    """Yield the pairs of the best alignment, and whether each is in all that are as good."""
    scores = np.array([[score(one, other) for other in b] for one in a], int).reshape(
        len(a), len(b)
    )
    before, after = _best(scores), _best(scores[::-1, ::-1])[::-1, ::-1]
    most = before[-1, -1]
    at = np.where(scores > 0, before[:-1, :-1] + scores + after[1:, 1:], -1)
    skipped = (before[:-1] + after[1:]).max(axis=1, initial=-1)  # the best without a unit of a
    i = j = 0
    while i < len(a) and j < len(b):
        if at[i, j] == most and before[i, j] + after[i, j] == most:
            alone = np.count_nonzero(at[i] == most) == 1 and skipped[i] < most
            yield i, j, bool(alone)
            i, j = i + 1, j + 1
        elif after[i + 1, j] == after[i, j]:
            i += 1
        else:
            j += 1


def _best(scores: np.ndarray) -> np.ndarray:
    """Return for each pair of beginnings the best sum of scores of pairs in order."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1), int)
    for i in range(rows):
        for j in range(columns):
            paired = best[i, j] + scores[i, j] if scores[i, j] else 0
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], paired)
    return best
