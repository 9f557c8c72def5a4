"""Pairs parameters with those of a side whose modules are not known, by shapes and values.

A function of JAX and a graph of TensorFlow say what their variables are called, which shapes
and values these have, and their gradients; not what is done with them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from parity.align.kinds import RECURRENT, Part, Unit, flattened, joint
from parity.align.layout import Layout

Tensors = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]

# the largest distance of the first gradients that confirms a pair, of their largest magnitude
_AGREE = 1e-3
_ROLES = {
    **dict.fromkeys(("w", "weight", "weights", "kernel", "gamma", "scale", "g"), "weight"),
    **dict.fromkeys(("embedding", "embeddings", "table"), "weight"),
    **dict.fromkeys(("b", "bias", "biases", "beta", "offset", "shift"), "bias"),
    **dict.fromkeys(("moving_mean", "running_mean", "mean"), "running_mean"),
    **dict.fromkeys(("moving_variance", "running_var", "var", "variance"), "running_var"),
}


@dataclass(frozen=True)
class Target:
    """A parameter of the side whose modules are known.

    Attributes:
      unit: place of its unit.
      role: what the unit calls it.
      kind: what the unit is.
      parts: what may stand for it in the shared layout, such as two matrices side by side.
      gates: the order of its gates on the other side, by which it is tried first.
      images: shape of the images [batch, height, width, channels] that the unit may read as
        rows of the last one; () if it reads none.
    """

    unit: int
    role: str
    kind: str
    parts: tuple[Part, ...]
    gates: tuple[int, ...] = ()
    images: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fit:
    """What may be one parameter.

    Attributes:
      target: place of the target.
      known, bare: what it is on each side.
      equal: whether the initial weights are equal.
      told: whether they are, and no constants.
      distance: of the first gradients; None: one of them was not recorded, or is zero.
    """

    target: int
    known: Part
    bare: Part
    equal: bool
    told: bool
    distance: float | None

    @property
    def confirmed(self) -> bool:
        return self.equal and self.distance is not None and self.distance <= _AGREE


def group_of(name: str) -> tuple[str, str]:
    """Return which parameters one belongs to by its name, and its role; "" if none is told.

    These are those with its path, `dense/kernel`, or what is left of a name: `w1`, `out_b`.
    """
    path, own = re.split(r"[./](?=[^./]*$)", name) if re.search("[./]", name) else ("", name)
    if role := _ROLES.get(own.lower()):
        return path, role
    for word, role in sorted(_ROLES.items(), key=lambda each: -len(each[0])):
        for form in (rf"{word}_?(\d+|(?<=_).+)", rf"(.+)_{word}"):
            if found := re.fullmatch(form, own.lower()):
                return f"{path}/{found[1]}".lstrip("/"), role
    return path, ""


def natural(name: str) -> list[Any]:
    """Return the key by which layer_2 comes before layer_10."""
    parts = re.split(r"(\d+)", name)
    return [int(each) if place % 2 else each for place, each in enumerate(parts)]


def grouped(names: Sequence[str]) -> list[Unit]:
    """Return the groups of parameters as units of the user's own."""
    units: dict[str, Unit] = {}
    for name in names:
        group, _ = group_of(name)
        unit = units.setdefault(group, Unit(group or "model", "parameter", known=False))
        unit.parameters[name] = Part((name,))
    return list(units.values())


def targets_of(
    units: Sequence[Unit], shapes: Shapes, others: Sequence[tuple[int, ...]]
) -> list[Target]:
    """Return the parameters of units, as the other side may have them.

    Args:
      shapes: name -> shape, of parameters and of outputs as forward/NAME.
      others: shapes of the other side's parameters.
    """
    found: list[Target] = []
    images: tuple[int, ...] = ()
    taken = set[str]()
    gates = [
        part.names[0]
        for unit in units
        for role, part in unit.parameters.items()
        if unit.kind in RECURRENT and role.startswith("bias")
    ]
    for place, unit in enumerate(units):
        own = _as_the_other_has_it(unit, shapes, others, gates)
        for role, parts in own.items():
            if not taken & set(parts[0].names):  # else tied: it has its row already
                taken.update(parts[0].names)
                reads = images if unit.kind == "linear" else ()
                # one matrix of an LSTM: i, g, f, o in tf.nn.rnn_cell and Haiku
                order = (0, 2, 1, 3) if unit.kind == "lstm" and "weight" in own else ()
                found.append(Target(place, role, unit.kind, parts, order, reads))
        for part in unit.outputs.values():
            shape = _shape(part, {n: shapes[f"forward/{n}"] for n in part.names})
            if len(shape) == 4:  # [batch, channels, height, width]
                images = (shape[0], *shape[2:], shape[1])
    return found


def _as_the_other_has_it(
    unit: Unit,
    shapes: Shapes,
    others: Sequence[tuple[int, ...]],
    gates: Sequence[str],
) -> dict[str, tuple[Part, ...]]:
    """Return role -> what may stand for it: of recurrent units one matrix, or bias, of two."""
    own: dict[str, tuple[Part, ...]] = {role: (p,) for role, p in unit.parameters.items()}
    two = [
        (part, _shape(part, shapes))
        for n in ("ih", "hh")
        for part in own.get(f"weight_{n}", ())
    ]
    if [len(shape) for _, shape in two] != [2, 2]:
        return own
    (rows, inputs), (_, hidden) = (shape for _, shape in two)
    if {(inputs + hidden, rows), (rows, inputs + hidden)} & set(others):
        del own["weight_ih"], own["weight_hh"]
        own["weight"] = tuple(
            Part(
                tuple(name for part, _ in both for name in part.names),
                (*two[0][0].layout, {"concatenate": [1, [shape[1] for _, shape in both]]}),
            )
            for both in (two, two[::-1])
        )
    whole = joint("bias", unit)
    if whole is not None and len(whole.names) > 1 and others.count((rows,)) < len(gates):
        del own["bias_ih"], own["bias_hh"]
        own["bias"] = (whole,)
    return own


def _layouts(
    target: Target, shape: tuple[int, ...], given: tuple[int, ...]
) -> list[tuple[Any, ...]]:
    """Return the layouts by which a tensor may have a target's shape, each once."""
    starts: list[tuple[Any, ...]] = []
    rank = len(shape)
    if rank == 2 and given == shape[::-1] and target.kind != "embedding":
        if target.images and prod(target.images[1:]) == shape[1]:
            starts.append(("transpose", *flattened(target.images, shape[0])))
        starts.append(("transpose",))  # before the matrix as it is: most compute x @ w
    if target.kind == "conv" and rank > 2 and given == (*shape[2:], shape[1], shape[0]):
        starts.append(({"axes": [rank - 1, rank - 2, *range(rank - 2)]},))
    if target.kind == "attention" and len(given) == 3 and rank == 2:  # by heads
        rows = [given[0], given[1] * given[2]]
        if shape == tuple(rows[::-1]):
            starts.append(({"reshape": [list(given), rows]}, "transpose"))
    if shape == given:
        starts.append(())
    elif [n for n in shape if n > 1] == [n for n in given if n > 1]:
        starts.append(({"reshape": [list(given), list(shape)]},))
    count = {"lstm": 4, "gru": 3}.get(target.kind, 1)
    same = tuple(range(count))
    orders = dict.fromkeys((target.gates or same, *permutations(same)))
    return [
        start if order == same else (*start, {"blocks": [0, list(order)]})
        for start in starts
        for order in orders
    ]


def fits_of(
    targets: Sequence[Target], known: Tensors, bare: Tensors, names: Sequence[str]
) -> list[Fit]:
    """Return all that may be one parameter by its shape.

    Args:
      known, bare: name -> array, of the first step of each side.
      names: the parameters of the bare side.
    """
    return [
        _fit(place, part, Part((name,), layout), known, bare)
        for place, target in enumerate(targets)
        for part in target.parts
        if all(f"initial/{name}" in known for name in part.names)
        for shape in (_shape(part, {n: known[f"initial/{n}"].shape for n in part.names}),)
        for name in names
        for layout in _layouts(target, shape, bare[f"initial/{name}"].shape)
    ]


def _fit(place: int, part: Part, other: Part, known: Tensors, bare: Tensors) -> Fit:
    mine, theirs = _value("initial", part, known), _value("initial", other, bare)
    equal = mine is not None and theirs is not None and np.array_equal(mine, theirs)
    told = equal and mine is not None and mine.size > 1 and bool(np.ptp(mine))
    distance = _gradients_distance(part, known, other, bare) if equal else None
    return Fit(place, part, other, equal, told, distance)


def _gradients_distance(part: Part, known: Tensors, other: Part, bare: Tensors) -> float | None:
    theirs = _value("gradient", other, bare)
    distances = [
        distance(mine, theirs)
        for rung in ("gradient", "clipped_gradient")
        if theirs is not None and (mine := _value(rung, part, known)) is not None
    ]
    return min((each for each in distances if each is not None), default=None)


def distance(a: np.ndarray, b: np.ndarray) -> float | None:
    """Return max|a - b| / max|a|; None if a is zero, or has other numbers than finite ones."""
    most = np.abs(a).max(initial=0)
    return float(np.abs(a - b).max() / most) if most > 0 and np.isfinite(most) else None


def _value(rung: str, part: Part, tensors: Tensors) -> np.ndarray | None:
    layout = Layout.read(part.layout)
    given = [tensors.get(f"{rung}/{name}") for name in part.names]
    there = [each for each in given if each is not None]
    terms = rung == "initial"
    if len(there) < len(given) and (terms or not layout.sums or not there):
        return None
    return layout.apply(there, terms=terms)


def _shape(part: Part, shapes: Shapes) -> tuple[int, ...]:
    given = [np.broadcast_to(np.int8(0), shapes[name]) for name in part.names]
    try:
        return Layout.read(part.layout).apply(given).shape
    except ValueError:
        return ()


def assigned(targets: Sequence[Target], fits: Sequence[Fit]) -> list[tuple[Fit, bool, str]]:
    """Return the best pairs, whether each is sure, and why it is or is not.

    A pair is sure if the weights and gradients of no other agree, or if no other has a shape
    that fits and the shape tells the layout.
    """
    groups = {fit.bare.names[0]: group_of(fit.bare.names[0]) for fit in fits}
    sizes: dict[tuple[str, Any], set[Any]] = {}  # what there is of a unit, or of a group
    between: dict[tuple[int, str], tuple[set[int], set[str]]] = {}
    for place, target in enumerate(targets):
        sizes.setdefault(("unit", target.unit), set()).add(place)
    for name, (group, _) in groups.items():
        sizes.setdefault(("group", group), set()).add(name)
    for fit in fits:
        name = fit.bare.names[0]
        both = between.setdefault((targets[fit.target].unit, groups[name][0]), (set(), set()))
        both[0].add(fit.target)
        both[1].add(name)

    def rank(fit: Fit) -> tuple[Any, ...]:
        name, target = fit.bare.names[0], targets[fit.target]
        group, role = groups[name]
        most = max(len(sizes["unit", target.unit]), len(sizes["group", group]))
        mine, theirs = between[target.unit, group]
        alike = min(len(mine), len(theirs)) / most
        return fit.confirmed, fit.told, alike, role == target.role, fit.equal

    found: list[tuple[Fit, bool, str]] = []
    done: tuple[set[int], set[str]] = (set(), set())
    for fit in sorted(fits, key=rank, reverse=True):
        name, target = fit.bare.names[0], targets[fit.target]
        if fit.target in done[0] or name in done[1]:
            continue
        done[0].add(fit.target)
        done[1].add(name)
        beside = [f for f in fits if f.target == fit.target or name in f.bare.names]
        if sum(each.confirmed for each in beside) == 1 and fit.confirmed:
            found.append((fit, True, ""))
            continue
        tells = target.kind not in (*RECURRENT, "attention") and not target.images
        if len(beside) == 1 and tells and not fit.confirmed:
            found.append((fit, True, "no other has its shape"))
        else:
            why = "others would fit as well" if len(beside) > 1 else "its layout may be another"
            found.append((fit, False, why))
    return found
