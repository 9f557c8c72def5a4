"""How one tensor is made of another: scaled, transposed, permuted, rounded, wrong in places.

A relation is named only where it explains the difference: what it leaves is at most a
thousandth of what it explains.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

SAME = 1e-3  # how exactly a relation must hold, as a share of the difference
_MOST = 512  # slices along an axis that are looked for in another order
_SIMPLE = 64  # the largest number that a factor is the multiple of, or the part by
_SINGLE = 1e-5  # how near a single number must be to a simple multiple: any is some multiple
_FEWEST = 8  # so many numbers do not lack the same digits by chance
_NAMED = 4  # slices that are named one by one
_ROUGHLY = 0.1  # how far apart ratios may be whose last digits cancel: 5 % in float32
_FILLED = 0.75  # the share of wrong elements from which it is their slice that is wrong

# Unit roundoffs, and within which multiples of that of float32 a difference is of its size.
_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_OF_ITS_SIZE = 2.0**-5, 2.0**2


@dataclass(frozen=True)
class Axis:
    """What the places along an axis of a tensor are called.

    Attributes:
      name: one of them, such as "row".
      part: what the axis is divided into, such as "replica"; empty for nothing.
      parts: name of a part -> its places.
    """

    name: str
    part: str = ""
    parts: Mapping[str, range] = field(default_factory=dict)


def relation(
    found: np.ndarray, expected: np.ndarray, known: Mapping[str, float] | None = None
) -> str:
    """Return the first of several simple relations by which one array is made of another.

    Args:
      found: b, any shape; a transposed one need not have the shape of a.
      expected: a.
      known: as for `meaning`.

    Returns:
      A template of the names `{a}` and `{b}`, such as "{b} is zero"; empty for none.
    """
    b, a = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape:
        return _of_shapes(b, a)
    difference = np.abs(b - a)
    if not a.size or (a.size == 1 and np.asarray(expected).dtype.kind in "iu"):
        return ""  # a single whole number is the number of something, and no part of another
    if not b.any():
        return "{b} is zero"
    if not a.any():
        return "{a} is zero"
    slack = SAME * float(difference.max())
    if seen := _scaled(b, a, slack, known or {}):
        return seen
    for find in (_shifted, _transposed, _permuted, _offset):
        if seen := find(b, a, slack):
            return seen
    return ""


def _holds(b: np.ndarray, other: np.ndarray, slack: float) -> bool:
    return b.shape == other.shape and bool(np.abs(b - other).max() <= slack)


def _of_shapes(b: np.ndarray, a: np.ndarray) -> str:
    """Return how an array of another shape is made: its values are those of the other."""
    if a.size == b.size and a.size > 1:
        slack = SAME * float(np.abs(a).max())
        if a.ndim == b.ndim == 2 and _holds(b, a.T, slack):
            return "{b} is {a} transposed"
        if _holds(b.ravel(), a.ravel(), slack):
            return "{b} is {a} in another shape, in the same order"
    return ""


def _scaled(b: np.ndarray, a: np.ndarray, slack: float, known: Mapping[str, float]) -> str:
    square = float(np.vdot(a, a))
    factor = float(np.vdot(a, b)) / square if square else np.nan
    slack = min(slack, SAME * float(np.abs(b).max()))  # what is small is not a multiple of all
    if not np.isfinite(factor) or not _holds(b, factor * a, slack):
        return ""
    simple = _simple(factor)
    if a.size < 3 and not simple:  # any two numbers are multiples of each other
        return ""
    # the digits that tell it from 1
    digits = max(5, 2 - int(np.floor(np.log10(abs(1 - factor) or 1))))
    means = meaning(factor, known)
    return f"{{b}} is {simple or f'{factor:.{digits}g} times'} {{a}}{means}"


def meaning(factor: float, known: Mapping[str, float]) -> str:
    """Return which known numbers a factor is, or 1 over them: " (1 / replicas)"; or "".

    Args:
      known: what a number is -> the number. One of 1 says nothing.
    """
    told = [
        words
        for name, number in known.items()
        for words, value in ((name, number), (f"1 / {name}", 1 / number if number else 0.0))
        if number != 1 and value and abs(factor / value - 1) <= _SINGLE
    ]
    return f" ({', '.join(told)})" if told else ""


def _simple(factor: float) -> str:
    """Return "2 times", "1/3 of" or "minus" for a factor that is that; empty for any other.

    Simple are multiples and parts up to 64, and any power of two: losses are scaled by those.
    """
    power = Fraction(2) ** round(np.log2(abs(factor))) if factor else Fraction(0)
    for near in (Fraction(factor).limit_denominator(_SIMPLE), power if factor > 0 else -power):
        plain = near and 1 in (abs(near.numerator), near.denominator) and near != 1
        simple = plain and (abs(near.numerator) <= _SIMPLE or abs(near) == power)
        if simple and abs(factor - float(near)) <= _SINGLE * abs(float(near)):
            if near == -1:
                return "minus"
            return f"{near} of" if near.denominator > 1 else f"{near} times"
    return ""


def _shifted(b: np.ndarray, a: np.ndarray, slack: float) -> str:
    for axis in range(b.ndim):
        count = b.shape[axis]
        for by in (-1, 1) if count > 2 else ():
            kept = np.arange(1, count) if by > 0 else np.arange(count - 1)
            x, y = np.take(b, kept, axis), np.take(a, kept - by, axis)
            if x.any() and np.abs(x - y).max() <= slack and not _constant(y, axis):
                where = f"by one {'forward' if by > 0 else 'back'} along axis {axis}"
                return f"{{b}} is {{a}} shifted {where}"
    return ""


def _constant(array: np.ndarray, axis: int) -> bool:
    return bool((np.diff(array, axis=axis) == 0).all())


def _transposed(b: np.ndarray, a: np.ndarray, slack: float) -> str:
    if b.ndim < 2 or not _holds(b, np.swapaxes(a, -1, -2), slack):
        return ""
    axes = "" if b.ndim == 2 else " in its last two axes"
    return f"{{b}} is {{a}} transposed{axes}"


def _permuted(b: np.ndarray, a: np.ndarray, slack: float) -> str:
    for axis in range(b.ndim) if b.size > 2 else ():
        count = b.shape[axis]
        if not 1 < count <= _MOST:
            continue
        x, y = (np.moveaxis(each, axis, 0).reshape(count, -1) for each in (b, a))
        order = _order(x, y, slack)
        if order is not None:
            return _in_words(order, _slices(b.ndim, axis))
    return ""


def _order(x: np.ndarray, y: np.ndarray, slack: float) -> list[int] | None:
    """Return which row of y each row of x is; None if they are not the same rows."""
    # a few columns propose the order, all of them confirm it
    some = np.unique(np.linspace(0, x.shape[1] - 1, 16).astype(int))
    order: list[int] = []
    for row in x:
        apart = np.abs(y[:, some] - row[some]).max(axis=1)
        # a row that is equal to several stays at its place if it can
        near = [i for i in np.flatnonzero(apart <= slack) if i not in order]
        if not near:
            return None
        order.append(int(len(order) if len(order) in near else near[0]))
    return order if np.abs(x - y[order]).max() <= slack else None


def _in_words(order: Sequence[int], slices: str) -> str:
    moved = [place for place, of in enumerate(order) if of != place]
    if len(moved) == 2:
        kind, _, axis = slices.partition(" ")  # "slices", "of axis 1"
        both = f"{kind} {moved[0]} and {moved[1]} {axis}".rstrip()
        return f"{{b}} is {{a}} with {both} exchanged"
    count = len(order)
    for blocks in range(2, count):
        size = count // blocks
        if count % blocks or size == 1:
            continue
        starts = [order[i * size] for i in range(blocks)]
        straight = all(order[i] == starts[i // size] + i % size for i in range(count))
        if straight and not any(start % size for start in starts):
            now = ", ".join(str(start // size) for start in starts)
            return f"{{b}} is {{a}} with its {blocks} blocks of {slices} in the order {now}"
    if list(order) == list(range(count))[::-1]:
        return f"{{b}} is {{a}} with its {slices} in the reverse order"
    return f"{{b}} is {{a}} with {len(moved)} of its {count} {slices} in another order"


def _offset(b: np.ndarray, a: np.ndarray, slack: float) -> str:
    apart = b - a
    if b.size <= 2 or apart.max() - apart.min() > slack:
        return ""
    return f"{{b}} is {{a}} plus {float(apart.mean()):.5g}"


def _slices(axes: int, axis: int) -> str:
    """Return what the slices along an axis are called."""
    if axes == 1:
        return "elements"
    if axis == 0:
        return "rows"
    return "columns" if axis == axes - 1 else f"slices of axis {axis}"


def rows_scaled(found: np.ndarray, expected: np.ndarray) -> str:
    """Return the relation of two arrays whose rows are multiples of each other, if they are.

    A normalisation with another epsilon does that to each vector along the last axis. Its shift
    must be zero, or the same in both.
    """
    b, a = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or a.ndim < 2 or a.shape[-1] < 3 or a.size == a.shape[-1]:
        return ""
    squares = (a * a).sum(-1)
    if not squares.all():
        return ""
    factors = (a * b).sum(-1) / squares
    slack = SAME * float(np.abs(b - a).max())
    apart = float(np.ptp(factors))
    if (
        not _holds(b, factors[..., None] * a, slack)
        or apart <= 0.02 * np.abs(1 - factors).max()
    ):
        return ""
    digits = max(4, 1 - int(np.floor(np.log10(apart))))
    low, high = (f"{each:.{digits}g}" for each in (factors.min(), factors.max()))
    says = f"each row of {{b}} is that of {{a}} times {low} to {high}"
    return says + _of_epsilons(squares, (b * b).sum(-1), a.shape[-1])


def _of_epsilons(a: np.ndarray, b: np.ndarray, size: int) -> str:
    """Say how many times another an epsilon is, if rows are normalised but for these two.

    A row of variance v has a mean square of v / (v + epsilon): what it lacks shows the epsilon.

    Args:
      a, b: the sum of squares of each row.
      size: its elements.
    """
    if max(a.max(), b.max()) >= size or not b.all():
        return ""
    of_a, of_b = size / a - 1, size / b - 1  # epsilon / v
    ratios = of_b / of_a
    # epsilons that explain the rows have one ratio, however much the rows' variances differ
    apart, of_rows = (float(each.max() / each.min()) - 1 for each in (ratios, of_b))
    if apart > min(_ROUGHLY, of_rows / 4):
        return ""
    ratio = float(f"{of_b.sum() / of_a.sum():.2g}")
    return f", as of a normalisation whose epsilon is some {ratio:g} times that of {{a}}"


def rounded(found: np.ndarray, expected: np.ndarray) -> str:
    """Return the type that b seems to have been rounded to on its way; "" for none.

    Either it has no digits beyond that precision, and should have some, or its difference is of
    the size of one rounding to float32.
    """
    b, a = np.asarray(found), np.asarray(expected, np.float64)
    if b.shape != a.shape or b.dtype.kind != "f" or not b.size:
        return ""
    held = np.finfo(b.dtype).eps / 2
    largest = float(np.abs(a).max())
    relative = float(np.abs(b - a).max()) / largest if largest else 0.0
    for dtype, unit in _UNITS.items():
        if unit > held and relative <= 2 * unit and b.size >= _FEWEST and _has_only(b, unit):
            return dtype
    low, high = (each * _UNITS["float32"] for each in _OF_ITS_SIZE)
    return "float32" if held < _UNITS["float32"] and low <= relative <= high else ""


def is_rounding(found: np.ndarray, expected: np.ndarray) -> str:
    """Return the type to which b is a rounded, or cut off, by element; "" for none."""
    b, a = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype or b.dtype.kind != "f" or b.size < _FEWEST:
        return ""
    held = np.finfo(b.dtype).eps / 2
    apart = np.abs(np.asarray(b, np.float64) - a)
    for dtype, unit in _UNITS.items():
        # float16 has subnormals from 6e-5 down, whose errors are absolute
        least = 2.0**-25 if dtype == "float16" else 0.0
        within = apart <= 2.01 * (unit * np.abs(np.asarray(a, np.float64)) + least)
        if unit > held and within.all() and _has_only(b, unit) and not _has_only(a, unit):
            return dtype
    return ""


def narrower_numbers(found: np.ndarray, expected: np.ndarray) -> str:
    """Say that one of two tensors holds numbers of a narrower type alone; empty if none does.

    Its inputs may have been rounded as well, so it need not be the other one rounded.
    """
    b, a = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype or b.dtype.kind != "f" or b.size < _FEWEST:
        return ""
    held = np.finfo(b.dtype).eps / 2
    for dtype, unit in reversed(_UNITS.items()):
        narrow = _has_only(a, unit), _has_only(b, unit)
        if unit > held and narrow[0] != narrow[1]:
            one, other = ("a", "b") if narrow[0] else ("b", "a")
            return f"{{{one}}} holds numbers of {dtype} alone, {{{other}}} does not"
    return ""


def _has_only(array: np.ndarray, unit: float) -> bool:
    """Return whether no element has digits beyond a unit roundoff."""
    mantissas, _ = np.frexp(array.astype(np.float64))
    return not ((mantissas / unit) % 1).any()


def region(
    found: np.ndarray,
    expected: np.ndarray,
    axes: Sequence[Axis] = (),
    known: Mapping[str, float] | None = None,
) -> str:
    """Return in which part of a tensor alone the two differ; empty if all over.

    Args:
      axes: what the first axes are; the rest are rows and columns.
      known: as for `meaning`.

    Returns:
      A template as `relation` returns, with that part's relation where it has a simple one.
    """
    b, a = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not a.ndim or a.size < 3:
        return ""
    apart = np.abs(b - a)
    wrong = apart > SAME * apart.max()
    told = (a != 0) | (b != 0)  # what is zero on both sides, such as padding, tells nothing
    named = [*axes, *(Axis(_slices(a.ndim, k)[:-1]) for k in range(len(axes), a.ndim))]
    within = ""  # of scattered elements, an equal part of an axis that has them all
    for number in sorted(range(a.ndim), key=lambda each: "time" not in named[each].name):
        others = tuple(each for each in range(a.ndim) if each != number)
        bad = np.flatnonzero(wrong.any(axis=others))
        where = _which(bad, a.shape[number], named[number])
        some = np.take(wrong, bad, number).sum()
        if not where or some < _FILLED * np.take(told, bad, number).sum():
            within = within or (where if where.endswith("equal parts") else "")
            continue
        part = relation(np.take(b, bad, number), np.take(a, bad, number), known)
        more = f", where {part}" if part else ""
        return f"{{b}} and {{a}} differ {where}{more}"
    if wrong.mean() > 0.95:
        return ""
    for one, says in ((b, "{b} is zero"), (a, "{a} is zero")):
        if not one[wrong].any():
            share = f"{int(wrong.sum()):,} of {wrong.size:,} elements"
            return f"masked: {{b}} and {{a}} differ in {share} alone, where {says}"
    return within and f"{{b}} and {{a}} differ {within}"


def _which(bad: np.ndarray, count: int, axis: Axis) -> str:
    """Say which slices along an axis are wrong; empty where they are most, or scattered."""
    if not 0 < len(bad) < count or count < 3:
        return ""
    places, name = bad.tolist(), axis.name
    if "time" in name and places == [*range(places[0], count)]:
        return f"from {name} {places[0]} of {count} on"
    of = _parts(places, axis)
    if len(bad) > count / 2 and not of:
        return ""
    if len(bad) == 1:
        return f"in {name} {places[0]} of {count} alone{of}"
    if len(bad) > 2 and bad[-1] - bad[0] + 1 == len(bad):
        return f"in {name}s {bad[0]} to {bad[-1]} of {count} alone{of or _share(bad, count)}"
    if len(bad) <= _NAMED:
        return f"in {name}s {', '.join(map(str, bad[:-1]))} and {bad[-1]} of {count} alone{of}"
    return f"in {len(bad)} of {count} {name}s alone{of}" if of else ""


def _parts(places: Sequence[int], axis: Axis) -> str:
    """Say of which parts of an axis these are all places: ", those of gate f"; or ""."""
    own = {name: {*part} for name, part in axis.parts.items() if {*part} <= {*places}}
    names = [name for name, part in own.items() if part]
    if not names or set().union(*own.values()) != {*places}:
        return ""
    some = f"{axis.part}s {', '.join(names[:-1])} and " if names[1:] else f"{axis.part} "
    return f", those of {some}{names[-1]}"


def _share(bad: np.ndarray, count: int) -> str:
    """Say which half, third or quarter of an axis a run is, as a gate would be; or ""."""
    shares = count // len(bad)
    if shares > 4 or count % len(bad) or bad[0] % len(bad):
        return ""
    which = ("first", "second", "third", "fourth")[bad[0] // len(bad)]
    return f", the {which} of {shares} equal parts"


def ends_of_rows(found: np.ndarray, expected: np.ndarray, lengths: np.ndarray | None) -> str:
    """Say that two tensors [batch, time, ...] differ at the ends of rows alone; "" otherwise.

    Args:
      lengths: the real tokens of each row, [batch]; None where they are not known.
    """
    if lengths is None or found.shape != expected.shape or found.shape[:1] != lengths.shape:
        return ""
    if found.ndim < 2 or found.shape[1] < max(2, lengths.max()) or np.ptp(lengths) == 0:
        return ""
    apart = np.abs(np.asarray(found, np.float64) - expected)
    wrong = (apart > SAME * apart.max()).reshape(*found.shape[:2], -1).any(axis=2)
    left = lengths[:, None] - np.arange(found.shape[1])
    if not wrong.any() or (wrong & (left > 1)).any():
        return ""
    if not (wrong & (left == 1)).any():
        return "{b} and {a} differ in padding alone"
    return "" if (wrong & (left < 1)).any() else "{b} and {a} differ in rows' last tokens alone"


def lengths_by_padding(tokens: np.ndarray) -> np.ndarray | None:
    """Return the real tokens of each row, [batch]; None where no padding is seen.

    Padding is a value that ends several rows, and more than one row more than once.

    Args:
      tokens: integers [batch, time].
    """
    if tokens.dtype.kind not in "iu" or tokens.ndim != 2 or tokens.shape[1] < 2:
        return None
    values, counts = np.unique(tokens[:, -1], return_counts=True)
    real = tokens != values[np.argmax(counts)]
    lengths = np.where(real.any(1), tokens.shape[1] - np.argmax(real[:, ::-1], axis=1), 0)
    ends = tokens.shape[1] - lengths
    return lengths if (ends > 1).any() and (ends > 0).sum() > 1 else None


def explanations(
    found: np.ndarray,
    expected: np.ndarray,
    axes: Sequence[Axis] = (),
    known: Mapping[str, float] | None = None,
) -> Iterator[str]:
    """Yield what explains the difference of two tensors, the most exact first; see `relation`.

    Args:
      axes, known: as for `region`.
    """
    if dtype := is_rounding(found, expected):
        yield f"{{b}} is {{a}} rounded to {dtype}"
        return
    if dtype := is_rounding(expected, found):
        yield f"{{a}} is {{b}} rounded to {dtype}"
        return
    finders: tuple[Callable[[], str], ...] = (
        lambda: relation(found, expected, known),
        lambda: region(found, expected, axes, known),
        lambda: rows_scaled(found, expected),
        lambda: narrower_numbers(found, expected),
    )
    for find in finders:
        if says := find():
            yield says
            return
