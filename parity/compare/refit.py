"""The optimiser's step refitted: by which rule the recorded weights moved.

From the recorded gradients and weights alone: a rule is one of an optimiser, with its numbers
and the place of its epsilon. Those that the trace's header states are tried first, then rules
with one thing changed, then with two; a rule counts only if it reproduces every recorded step.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from parity.base.text import counted

# step -> parameter -> (gradient, weight before, weight after), as float64
Moves = Sequence[Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]

AFTER, BEFORE, INSIDE = "after the bias correction", "before it", "below the root"
EXACT, ROUNDED, COMPLEMENTS = "exact", "rounded to float32", "1 less float32's"
EACH, STILL, AHEAD, NONE = "right", "always that of the first step", "one step ahead", "none"

# What rounding may do to a step, of its size, and to a weight, in unit roundoffs of the type.
# In float32, 1 - 0.999 and its powers are off by up to 5e-5; in float64, frameworks hold rates
# and other constants in float32, to 3e-8.
_OF_STEP = {"float64": 5e-8, "float32": 1e-4}
_ROUNDOFFS = 4
SOME = 256  # elements of each parameter that are refitted
_SNAP = 1e-3  # how near a rate or factor must be to the number that it is taken for
_TELLING = 100  # times what rounding may do to a weight: only larger moves confirm a rule
_FACTORS = (0.0, 0.5, 2.0, 3.0, 4.0, -1.0)  # of a parameter that moves as no other does
_EPSILONS = (0.0, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_DECAYS = (0.0, 1e-4, 5e-4, 1e-3, 4e-3, 1e-2, 0.1)
_HARDLY = 1e-12
_LARGEST = 1e30  # of an optimiser's settings
_HELD = "constants are"
_HELD_APART = 1e-6  # by how much float32 changes 1 - beta2, from which that can be told


@dataclass(frozen=True)
class Rule:
    """How an optimiser moves a weight.

    Attributes:
      kind: "sgd", "adam" or "rmsprop".
      momentum: of SGD; the first beta of Adam.
      nesterov: whether SGD looks ahead.
      dampening: part of the gradient that SGD's momentum leaves out after the first step.
      square: the second beta of Adam, rho of RMSprop.
      epsilon: the number added.
      added: where: `AFTER` or `BEFORE` Adam's bias correction; of RMSprop to the root,
        `AFTER`, or `INSIDE` it.
      correction: which step Adam's bias correction is for; see `EACH` and its like.
      decay: the part of a weight that is added to its gradient, or by which it decays.
      decoupled: the latter.
      stale: whether a gradient is used one step late.
      held: how the constants are held in float64: `EXACT`, `ROUNDED` to float32, so that
        1 - beta is that of 1 - 0.9, or `COMPLEMENTS`, so that it is 1 less that of 0.9.
    """

    kind: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    square: float = 0.0
    epsilon: float = 0.0
    added: str = AFTER
    correction: str = EACH
    decay: float = 0.0
    decoupled: bool = False
    stale: bool = False
    held: str = EXACT

    def constant(self, value: float) -> float:
        """Return a constant in the precision that the rule holds it in."""
        return value if self.held == EXACT else float(np.float32(value))

    def complement(self, value: float) -> float:
        """Return 1 less a constant, likewise."""
        if self.held == COMPLEMENTS:
            return 1 - self.constant(value)
        return self.constant(1 - value)


@dataclass(frozen=True)
class Fit:
    """A rule that reproduces all steps of a side.

    Attributes:
      rule: the rule.
      rates: the learning rate of each step.
      factors: parameter -> how many times as fast as the rest it moves, where that is not 1.
      cost: by how much the rule departs from what the header states.
      known: the parameters that it reproduces.
    """

    rule: Rule
    rates: tuple[float, ...]
    factors: Mapping[str, float]
    cost: float
    known: frozenset[str]


def stated(facts: Mapping[str, Any]) -> tuple[Rule, float | None] | None:
    """Return the rule and the rate that a watched trace's header states; None without one."""
    optimizer = facts.get("optimizer")
    if not isinstance(optimizer, Mapping) or not isinstance(optimizer.get("settings"), Mapping):
        return None
    # a Recorder's facts are whatever its user says
    given = {name: each for name, each in optimizer["settings"].items() if _is_number(each)}
    kind = str(optimizer.get("kind")).lower()
    match optimizer["settings"].get("betas"):
        case [beta, square] if _is_number(beta) and _is_number(square):
            given |= {"beta1": beta, "beta2": square}

    def first(*names: str, default: float = 0.0) -> float:
        return float(next((given[name] for name in names if name in given), default))

    decay = first("weight_decay")
    epsilon = first("eps", "epsilon", default=1e-8)
    decoupled = kind == "adamw" or bool(given.get("decoupled_weight_decay"))
    rate = first("lr", "learning_rate") or None
    # Keras's decay of any optimiser is decoupled
    decoupled = bool(decay) and (decoupled or "beta_1" in given or "use_ema" in given)
    rule = Rule("sgd", decay=decay, decoupled=decoupled)
    if kind in ("adam", "adamw"):
        beta = first("beta1", "beta_1", default=0.9)
        square = first("beta2", "beta_2", default=0.999)
        rule = replace(rule, kind="adam", momentum=beta, square=square, epsilon=epsilon)
    elif kind == "rmsprop":
        square = first("alpha", "rho", default=0.9)
        rule = replace(rule, kind=kind, square=square, epsilon=epsilon)
    elif kind in ("sgd", "momentum"):
        nesterov = bool(given.get("nesterov") or given.get("use_nesterov"))
        momentum, dampening = first("momentum"), first("dampening")
        rule = replace(rule, momentum=momentum, nesterov=nesterov, dampening=dampening)
    else:
        return None
    # in float32, too: a correction by 1 - beta of 0 is none
    shares = all(each >= 0 and np.float32(each) < 1 for each in (rule.momentum, rule.square))
    if rule.kind != "sgd" and not (shares and rule.epsilon >= 0):
        return None
    return rule, rate


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= _LARGEST


def refit_both(
    moves: Sequence[Moves], dtype: str, facts: Sequence[Mapping[str, Any]]
) -> list[Fit] | None:
    """Return the rules of two sides that depart least from what is stated; None without both.

    Rates that change from step to step would hide a bias correction: a side is taken to have
    the other's, or a multiple of them, if that reproduces its steps.
    """
    a, b = (refit(each, dtype, of) for each, of in zip(moves, facts, strict=True))
    if a is None or b is None:
        return None
    if _near(a.rates, b.rates):
        return [a, b]
    pairs = [
        [a, refit(moves[1], dtype, facts[1], a.rates, b) or b],
        [refit(moves[0], dtype, facts[0], b.rates, a) or a, b],
    ]
    return min(pairs, key=lambda pair: pair[0].cost + pair[1].cost)


def refit(
    moves: Moves,
    dtype: str,
    facts: Mapping[str, Any],
    rates: Sequence[float] = (),
    best: Fit | None = None,
) -> Fit | None:
    """Return the rule that reproduces all steps with the fewest changes; None without one.

    Args:
      moves: from the first step of the training on.
      dtype: the precision of the training.
      facts: the facts of the trace's header.
      rates: those of the other side, if they are known.
      best: a rule that is known to reproduce the steps.
    """
    start = stated(facts)
    if start is None or not moves:
        return None
    rule, rate = start
    telling = _telling(moves, dtype)
    if len(telling) <= len(moves[0]) / 2:
        return None
    changes = list(_changes(rule, moves))
    for number in (0, 1, 2):
        if best is not None and best.cost <= number:
            break
        for each in _changed(rule, changes, number):
            found = fit(each, moves, dtype, rate, telling, rates)
            if found is not None:
                cost = found.cost + number
                if best is None or cost < best.cost:
                    best = replace(found, cost=cost)
    return best


Change = tuple[str, Any]


def _changed(rule: Rule, changes: Sequence[Change], number: int) -> Iterator[Rule]:
    for some in combinations(changes, number):
        names = [name for name, _ in some]
        if len(set(names)) == number:
            values = {key: each for _, value in some for key, each in value.items()}
            yield replace(rule, **values)


def _changes(rule: Rule, moves: Moves) -> Iterator[Change]:
    """Yield the single changes of a rule: what is changed, and the new values."""
    found: list[tuple[str, dict[str, Any]]] = [("stale", {"stale": True})]
    if rule.kind == "sgd":
        momenta = {0.0, 0.5, 0.8, 0.9, 0.95, 0.99, *_momentum(rule, moves)}
        found += [("momentum", {"momentum": each}) for each in sorted(momenta)]
        found += [("nesterov", {"nesterov": not rule.nesterov})]
        found += [("dampening", {"dampening": each}) for each in (0.0, rule.momentum)]
    else:
        found += [("epsilon", {"epsilon": each}) for each in _EPSILONS]
        places = (AFTER, BEFORE) if rule.kind == "adam" else (AFTER, INSIDE)
        found += [("added", {"added": each}) for each in places]
        squares = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
        found += [("square", {"square": each}) for each in squares]
    if rule.kind == "adam":
        found += [("momentum", {"momentum": each}) for each in (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)]
        found += [("correction", {"correction": each}) for each in (STILL, AHEAD, NONE)]
    decays = {rule.decay, *_DECAYS, *_decay(rule, moves)}
    for decay, decoupled in product(sorted(decays), (False, True)):
        found.append(("decay", {"decay": decay, "decoupled": decoupled and decay > 0}))
    found += [("held", {"held": each}) for each in (ROUNDED, COMPLEMENTS)]
    for name, values in found:
        if replace(rule, **values) != rule:
            yield name, values


def _momentum(rule: Rule, moves: Moves) -> Iterator[float]:
    """Yield the momentum by which the second step holds what the first one moved."""
    if len(moves) < 2:
        return
    names = [name for name in moves[1] if name in moves[0]]
    first = [moves[0][name][2] - moves[0][name][1] for name in names]
    second = [moves[1][name][2] - moves[1][name][1] for name in names]
    gradients = [moves[1][name][0] for name in names]
    found = _regress(second, gradients, first)
    if found is not None and _HARDLY < found[1] < 1:
        yield float(f"{found[1]:.2g}")


def _decay(rule: Rule, moves: Moves) -> Iterator[float]:
    """Yield the decay by which the first step holds the weights beside the rest."""
    names = list(moves[0])
    step = _directions(replace(rule, decay=0.0), moves[:1])[0]
    moved = [moves[0][name][2] - moves[0][name][1] for name in names]
    held = [moves[0][name][1] for name in names]
    found = _regress(moved, [step[name][0] for name in names], held)
    if found is not None and found[0] < 0 and found[1] < 0:
        yield float(f"{found[1] / found[0]:.2g}")


def _regress(
    of: Sequence[np.ndarray], x: Sequence[np.ndarray], y: Sequence[np.ndarray]
) -> tuple[float, float] | None:
    """Return the best factors of two vectors whose sum is a third."""
    if not of:
        return None
    both = np.stack([np.concatenate(x), np.concatenate(y)], axis=1)
    if not np.isfinite(both).all() or not np.isfinite(np.concatenate(of)).all():
        return None  # numbers near the largest ones overflow
    found, _, rank, _ = np.linalg.lstsq(both, np.concatenate(of), rcond=1e-9)
    return (float(found[0]), float(found[1])) if rank == 2 else None


def _directions(rule: Rule, moves: Moves) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return for each step what each parameter moves by, at rate -1, and how exact that is.

    The second array is what the first one is a sum of, without the signs.
    """
    found: list[dict[str, tuple[np.ndarray, np.ndarray]]] = []
    state: dict[str, list[Any]] = {}
    for number, step in enumerate(moves):
        of_step = {}
        for name, (given, weight, _) in step.items():
            gradient = given
            if rule.stale:
                before = moves[number - 1].get(name) if number else None
                gradient = np.zeros_like(given) if before is None else before[0]
            size = np.abs(gradient)
            if rule.decay and not rule.decoupled:
                gradient = gradient + rule.decay * weight
                size = size + np.abs(rule.decay * weight)
            mine = state.setdefault(name, [0.0, 0.0, 0.0, number])
            moved, exact = _direction(rule, gradient, size, mine, number - mine[3])
            if rule.decay and rule.decoupled:
                moved = moved + rule.decay * weight
                exact = exact + np.abs(rule.decay * weight)
            of_step[name] = moved, exact
        found.append(of_step)
    return found


def _direction(
    rule: Rule, gradient: np.ndarray, size: np.ndarray, state: list[Any], number: int
) -> tuple[np.ndarray, np.ndarray]:
    epsilon = rule.constant(rule.epsilon)
    if rule.kind == "sgd":
        if not rule.momentum:
            return gradient, size
        keep = rule.constant(rule.momentum)
        part = 1 - rule.dampening if number else 1.0
        state[0] = keep * state[0] + part * gradient
        state[1] = keep * state[1] + part * size
        if rule.nesterov:
            return gradient + keep * state[0], size + keep * state[1]
        return state[0], state[1]
    gain = rule.complement(rule.square)
    state[2] = (1 - gain) * state[2] + gain * gradient**2
    if rule.kind != "adam":
        inside = rule.added == INSIDE
        root = np.sqrt(state[2] + epsilon) if inside else np.sqrt(state[2]) + epsilon
        return _over(gradient, root), _over(size, root)
    gain = rule.complement(rule.momentum)
    state[0] = state[0] + gain * (gradient - state[0])
    state[1] = state[1] + gain * (size - state[1])
    count = {EACH: number + 1, STILL: 1, AHEAD: number + 2, NONE: math.inf}[rule.correction]
    first = 1 - rule.constant(rule.momentum) ** count
    second = math.sqrt(1 - rule.constant(rule.square) ** count)
    root = np.sqrt(state[2])
    root = root + epsilon if rule.added == BEFORE else root + epsilon * second
    scale = second / first
    return _over(scale * state[0], root), _over(scale * state[1], root)


def _over(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.divide(x, y, out=np.zeros_like(x), where=y != 0)
    return found


def _telling(moves: Moves, dtype: str) -> frozenset[str]:
    """Return the parameters that move by much more than rounding may do to them."""
    unit = float(np.finfo(dtype).eps) / 2
    return frozenset(
        name
        for step in moves
        for name, (_, before, after) in step.items()
        if (
            np.abs(after - before)
            > _TELLING * _ROUNDOFFS * unit * (np.abs(before) + np.abs(after))
        ).any()
    )


def fit(
    rule: Rule,
    moves: Moves,
    dtype: str,
    rate: float | None,
    telling: frozenset[str],
    others: Sequence[float] = (),
) -> Fit | None:
    """Return how a rule reproduces the steps; None if it does not.

    It does if more than half of the parameters move by it in every step, at one rate, which may
    change from step to step, and by much more than rounding may do.

    Args:
      rate: the rate that the header states, if it does.
      telling: the parameters that move by much more than rounding.
      others: the rates of the other side, if they are known.
    """
    directions = _directions(rule, moves)
    rates = [_rate(step, directed) for step, directed in zip(moves, directions, strict=True)]
    if any(each is None for each in rates):
        return None
    exact = [each for each in rates if each is not None]
    if rule.stale and len(exact) > 1:
        exact[0] = exact[1]
    for cost, tried in _likely(exact, rate, others):

        def moves_at(factor: float, name: str, rates: Sequence[float] = tried) -> bool:
            return all(
                _reproduces(factor * rates[number], step[name], directed[name], dtype)
                for number, (step, directed) in enumerate(zip(moves, directions, strict=True))
                if name in step
            )

        plain = [name for name in moves[0] if moves_at(1.0, name)]
        if len(telling.intersection(plain)) <= len(moves[0]) / 2:
            continue
        odd = {}
        for name in [each for each in moves[0] if each not in plain]:
            factor = next((each for each in _FACTORS if moves_at(each, name)), None)
            if factor == 0 or (factor and name in telling):
                odd[name] = factor
        known = frozenset(plain) | frozenset(odd)
        cost += 1.0 * bool(odd) + 2.0 * (len(known) < len(moves[0]))
        return Fit(rule, tuple(tried), odd, cost, known)
    return None


def _likely(
    rates: Sequence[float], stated: float | None, others: Sequence[float]
) -> Iterator[tuple[float, list[float]]]:
    """Yield series of rates near to those found, with what each costs, the cheapest first."""
    if stated:
        yield 0.0, [stated] * len(rates)
        yield 0.0, [float(np.float32(stated))] * len(rates)
    if others:
        yield 0.0, list(others)
        times = [x / y for x, y in zip(rates, others, strict=True) if y]
        if times:
            yield 0.5, [float(f"{np.median(times):.3g}") * each for each in others]
    middle = float(np.median(rates))
    if all(abs(each - middle) <= _SNAP * abs(middle) for each in rates):
        yield 1.0, [float(f"{middle:.3g}")] * len(rates)
    yield 1.5, [float(f"{each:.3g}") for each in rates]
    yield 1.75, list(rates)


def _rate(
    step: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
    directed: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> float | None:
    """Return the rate of a step: that at which most parameters move."""
    products = {
        name: (
            float(directed[name][0] @ (before - after)),
            float(directed[name][0] @ directed[name][0]),
        )
        for name, (_, before, after) in step.items()
    }
    single = [xy / xx for xy, xx in products.values() if xx > 0]
    if not single:
        return 0.0
    middle = float(np.median(single))
    near = [
        (xy, xx)
        for xy, xx in products.values()
        if xx > 0 and abs(xy / xx - middle) <= 0.05 * abs(middle)
    ]
    if not near:
        return None
    return sum(xy for xy, _ in near) / sum(xx for _, xx in near)


def _reproduces(
    rate: float,
    move: tuple[np.ndarray, np.ndarray, np.ndarray],
    directed: tuple[np.ndarray, np.ndarray],
    dtype: str,
) -> bool:
    _, before, after = move
    direction, exact = directed
    unit = float(np.finfo(dtype).eps) / 2
    allowed = _ROUNDOFFS * unit * (np.abs(before) + np.abs(after))
    allowed += _OF_STEP[dtype] * abs(rate) * exact
    return bool((np.abs(after - before + rate * direction) <= allowed).all())


def difference(
    fits: Sequence[Fit], moves: Sequence[Moves], dtype: str, labels: Sequence[str], name: str
) -> str:
    """Return in what the rules of two sides differ, if that is why a parameter does.

    Only what matters is named: without it, the other side's steps are not reproduced.

    Args:
      name: the parameter that differs first; "" for any.

    Returns:
      A sentence; empty if nothing is known.
    """
    a, b = fits
    whole = list(moves[0][0])
    known = [each for each in whole if each in a.known and each in b.known]
    if not known or (name and name not in known):
        return ""
    a, b = fits = [replace(each, known=frozenset(known)) for each in fits]
    parts = [
        told
        for field in fields(Rule)
        if (told := _told(field.name, fits, moves, dtype, labels))
    ]
    parts += _of_speeds(a, b, known, labels)
    if len(parts) > 1:  # what is only a matter of the last digits explains no more
        parts = [each for each in parts if not each.startswith(_HELD)]
    if not parts:
        return ""
    count = len(moves[0])
    steps = f"the first {count} steps" if count > 1 else "the first step"
    some = len(known) < len(whole)  # the others move in ways that are not known
    where = f"in {_some(known)} of {len(whole)} parameters, " if some else ""
    if _correction_may_be_another(fits, moves, dtype):
        return (
            f"{where}{'; '.join(parts)}; or the bias correction is another, which {steps} do "
            "not tell apart from other rates"
        )
    return (
        f"{where}{'; '.join(parts)}; confirmed: that reproduces {steps} of both, in up to "
        f"{SOME} elements of each {'of these' if some else 'parameter'}"
    )


def _correction_may_be_another(fits: Sequence[Fit], moves: Sequence[Moves], dtype: str) -> bool:
    """Return whether rates that differ from step to step may be a bias correction.

    They are not if those of one side are a multiple of the other's.
    """
    a, b = fits
    if a.rule.kind != "adam" or b.rule.kind != "adam":
        return False
    if _constant([x / y if y else 0.0 for x, y in zip(a.rates, b.rates, strict=True)]):
        return False
    for each, mine in zip(fits, moves, strict=True):
        telling = _telling(mine, dtype)
        own = fit(each.rule, mine, dtype, None, telling)
        for correction, added in product((EACH, STILL, AHEAD, NONE), (AFTER, BEFORE)):
            rule = replace(each.rule, correction=correction, added=added)
            other = fit(rule, mine, dtype, None, telling)
            if own and other and other.cost <= own.cost and not _near(own.rates, other.rates):
                return True
    return False


def of_parameters(names: Sequence[str], does: str) -> str:
    """Return a clause about parameters, of which the first is named.

    Args:
      does: its verb and the rest, for several: "do not move", "move twice as fast".
    """
    if names[1:]:
        return f"{_some(names)} {does}"
    verb, _, rest = does.partition(" ")
    return f"{names[0]} {verb}{'es' if verb == 'do' else 's'} {rest}"


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if names[1:] else names[0]


def held_in_float32(
    fits: Sequence[Fit],
    moves: Sequence[Moves],
    squares: Sequence[Sequence[np.ndarray]],
    labels: Sequence[str],
    name: str,
) -> str:
    """Return which side computes 1 - beta2 in float32, where that alone is the difference.

    Of 1 - 0.999 it leaves five digits. Paddle has them in the second moment, Keras in the bias
    correction, and so in each step.

    Args:
      squares: of each side, what a parameter has in a slot after each step; empty if there is
        none.
      name: the parameter.

    Returns:
      A sentence; empty if that does not reproduce what was recorded.
    """
    rules = [each.rule for each in fits]
    square = rules[0].square
    if any(rule.kind != "adam" or rule.stale or rule.square != square for rule in rules):
        return ""
    right, held = 1 - square, 1 - float(np.float32(square))
    apart = abs(held / right - 1)
    if apart < _HELD_APART:
        return ""
    if all(squares):
        gains = [
            [gain for gain in (right, held) if _is_square(gain, rule, each, of_slot, name)]
            for rule, each, of_slot in zip(rules, moves, squares, strict=True)
        ]
        how = f"the second moment in {counted(len(squares[0]), 'step')}"
    else:
        factors = {right: 1.0, held: math.sqrt(held / right)}
        firsts = [
            (_rate(each[0], _directions(rule, each[:1])[0]) or 0.0) / (fit_.rates[0] or 1.0)
            for rule, each, fit_ in zip(rules, moves, fits, strict=True)
        ]
        gains = [
            [gain for gain, factor in factors.items() if abs(first - factor) < apart / 8]
            for first in firsts
        ]
        how = "the size of the first step"
    if sorted(gains) != sorted([[right], [held]]):
        return ""
    return (
        f"1 - beta2 is {gains[0][0]:.6g} in {labels[0]}, {gains[1][0]:.6g} in {labels[1]}; "
        f"confirmed: 1 - beta2 held in float32 in {labels[gains.index([held])]} reproduces "
        f"{how} of both"
    )


def _is_square(
    gain: float, rule: Rule, moves: Moves, slot: Sequence[np.ndarray], name: str
) -> bool:
    """Return whether a slot is the mean of squared gradients, of which each adds that part."""
    square = np.zeros(())
    for number, (step, recorded) in enumerate(zip(moves, slot, strict=False), start=1):
        gradient, weight, _ = step[name]
        if rule.decay and not rule.decoupled:
            gradient = gradient + rule.decay * weight
        square = square + gain * (gradient**2 - square)
        allowed = _ROUNDOFFS * number * float(np.finfo("float32").eps) / 2 * np.abs(square)
        if not (np.abs(recorded - square) <= allowed).all():
            return False
    return True


def _told(
    field: str, fits: Sequence[Fit], moves: Sequence[Moves], dtype: str, labels: Sequence[str]
) -> str:
    """Say in what a field of two rules differs, where that matters; empty elsewhere."""
    a, b = (each.rule for each in fits)
    names = ("decay", "decoupled") if field == "decay" else (field,)
    values = [tuple(getattr(rule, each) for each in names) for rule in (a, b)]
    if field == "decoupled" or values[0] == values[1]:
        return ""
    if field != "kind" and a.kind != b.kind:
        return ""
    changed = [
        replace(rule, **dict(zip(names, value, strict=True)))
        for rule, value in zip((a, b), values[::-1], strict=True)
    ]
    if all(
        _with_rates(rule, theirs, dtype, mine)
        for rule, theirs, mine in zip(changed, moves, fits, strict=True)
    ):
        return ""
    shown = [_shown(rule, field) for rule in (a, b)]
    name = _NAMES.get((a.kind, field)) or _NAMES["", field]
    return f"{name} {shown[0]} in {labels[0]}, {shown[1]} in {labels[1]}"


# (kind, field) -> how the sentence begins; of any kind without one
_NAMES = {
    ("", "kind"): "the optimiser is",
    ("", "momentum"): "momentum is",
    ("adam", "momentum"): "beta1 is",
    ("", "nesterov"): "Nesterov's momentum is",
    ("", "dampening"): "dampening is",
    ("adam", "square"): "beta2 is",
    ("rmsprop", "square"): "rho is",
    ("", "epsilon"): "epsilon is",
    ("", "added"): "epsilon is added",
    ("", "correction"): "the bias correction is",
    ("", "decay"): "decay is",
    ("", "stale"): "each step uses",
    ("", "held"): _HELD,
}


def _shown(rule: Rule, field: str) -> str:
    if field == "decay":
        how = "of the weight itself" if rule.decoupled else "added to the gradient"
        return f"{rule.decay:g} {how}" if rule.decay else "none"
    if field in ("nesterov", "stale"):
        yes, no = {
            "nesterov": ("used", "not used"),
            "stale": ("the gradient of the step before", "its own gradient"),
        }[field]
        return yes if getattr(rule, field) else no
    if field == "added" and rule.kind != "adam" and rule.added == AFTER:
        return "to the root"
    value = getattr(rule, field)
    return value if isinstance(value, str) else f"{value:g}"


def _with_rates(rule: Rule, moves: Moves, dtype: str, known: Fit) -> bool:
    """Return whether a rule reproduces what another did, at the same rates."""
    directions = _directions(rule, moves)
    return all(
        _reproduces(known.factors.get(name, 1.0) * rate, step[name], directed[name], dtype)
        for step, directed, rate in zip(moves, directions, known.rates, strict=True)
        for name in step
        if name in known.known
    )


def _near(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(abs(x - y) <= _SNAP * max(abs(x), abs(y)) for x, y in zip(a, b, strict=True))


def _constant(rates: Sequence[float]) -> bool:
    return max(rates) - min(rates) <= _SNAP * abs(max(rates, key=abs))


def _of_speeds(a: Fit, b: Fit, known: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Say which parameters move at other rates, each rate times its parameter's factor."""
    groups: dict[tuple[float, float], list[str]] = {}
    for name in known:
        pair = a.factors.get(name, 1.0), b.factors.get(name, 1.0)
        groups.setdefault(pair if pair[0] != pair[1] else (1.0, 1.0), []).append(name)
    same, found = _near(a.rates, b.rates), []
    for factors, names in groups.items():
        x, y = (
            [factor * rate for rate in each.rates]
            for factor, each in zip(factors, (a, b), strict=True)
        )
        if _near(x, y):
            continue
        if not same:
            of = f"the rate of {_some(names)}" if len(groups) > 1 else "the rate"
            found.append(_of_rates(of, x, y, labels))
            continue
        for factor, label in zip(factors, labels, strict=True):
            if factor != 1:
                does = f"move {factor:g} times as fast as the rest" if factor else "do not move"
                found.append(f"{of_parameters(names, does)} in {label}")
    return found


def _of_rates(of: str, x: Sequence[float], y: Sequence[float], labels: Sequence[str]) -> str:
    if _constant(x) and _constant(y) and x[0]:
        return (
            f"{of} is {x[0]:g} in {labels[0]}, {y[0]:g} in {labels[1]}, "
            f"{y[0] / x[0]:.4g} times that"
        )
    if len(x) > 1 and _near(x[:-1], y[1:]):
        return f"{of} in {labels[1]} is that of {labels[0]} in the step before"
    if len(x) > 1 and _near(y[:-1], x[1:]):
        return f"{of} in {labels[0]} is that of {labels[1]} in the step before"
    pairs = zip(x, y, strict=True)
    place = next(i for i, (p, q) in enumerate(pairs) if not _near([p], [q]))
    return (
        f"{of} in step {place} is {x[place]:.5g} in {labels[0]}, {y[place]:.5g} in {labels[1]}"
    )
