"""Mistakes in the update: Adam's constants, powers and slots, decay, rates, frozen weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.suspect import (
    CLIPPING,
    OPTIMIZER,
    UPDATE,
    Arrays,
    Change,
    Replacements,
    Suspect,
    WrongStep,
    suspect,
)
from parity.twins.oracle.optimizers import (
    clip_by_global_norm,
    in_precision,
    update_slots,
    update_weights,
)
from parity.twins.spec.spec import Spec, learning_rate

Tensors = Mapping[str, np.ndarray]
_RATE = ("batch",)
_EPSILONS = (1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield the suspects of a case."""
    yield from _schedules(case)
    yield from _rates(case)
    yield from _parameters(case)
    if case.spec.training.optimizer == "adam":
        yield from _constants(case)
        yield from _powers(len(case.sizes))


def updated(change: Callable[..., Arrays]) -> Replacements:
    """Return replacements of the weights' update.

    Args:
      change: called with the update and its arguments: spec, snapshot, slots, gradients, rate.
    """

    @wraps(update_weights)
    def update(
        spec: Spec, snapshot: Tensors, slots: Tensors, gradients: Tensors, learning_rate: float
    ) -> Arrays:
        return change(original(update_weights), spec, snapshot, slots, gradients, learning_rate)

    return {update_weights: update}


def _schedules(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the schedule has another rate for the step."""
    training, epoch = case.spec.training, case.step // case.per_epoch

    def at(step: int, by: Callable[[int], float]) -> bool:
        """Return whether a schedule gave all earlier steps their right rate."""
        return all(
            by(earlier) == learning_rate(training, earlier // case.per_epoch)
            for earlier in range(step)
        )

    schedules: tuple[tuple[str, Callable[[int], float], tuple[str, ...]], ...] = (
        (
            "a learning rate that decays an epoch too early",
            lambda step: learning_rate(training, step // case.per_epoch + 1),
            ("schedule-early",),
        ),
        (
            "a learning rate that decays an epoch too late",
            lambda step: learning_rate(training, max(step // case.per_epoch - 1, 0)),
            ("schedule-late",),
        ),
        (
            "a learning rate that decays with every step",
            lambda step: learning_rate(training, step),
            ("schedule-by-step",),
        ),
        ("a learning rate that never decays", lambda step: training.learning_rate, ()),
    )
    if not case.side.synchronous:
        workers = case.side.replicas
        schedules += (
            (
                "a learning rate that decays by the steps of all workers together",
                lambda step: learning_rate(training, step * workers // case.per_epoch),
                ("rate-by-steps-of-all",),
            ),
        )
    for name, by, faults in schedules:
        rate = by(case.step)
        if rate != learning_rate(training, epoch) and at(case.step, by):
            yield Suspect(name, name, _RATE, (Change({}, rate=rate),), faults)


def _rates(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which the update goes by another rate than the recorded one."""
    training, true = case.spec.training, case.rate
    epoch = case.step // case.per_epoch
    rates = {
        "of the first epoch": (training.learning_rate, ("rate-not-passed-on",)),
        "of the epoch before": (learning_rate(training, max(epoch - 1, 0)), ()),
        "of the next epoch": (learning_rate(training, epoch + 1), ()),
        "of 1": (1.0, ("served-without-rate",)),
    }
    seen = {true}
    for words, (rate, faults) in rates.items():
        if rate not in seen:
            seen.add(rate)
            yield suspect(
                f"an update by the learning rate {words} ({rate:g}, not {true:g})",
                UPDATE,
                _with_rate(rate),
                faults=faults,
            )

    def times(factor: float) -> Change:
        change = updated(
            lambda update, spec, s, slots, g, rate: update(spec, s, slots, g, rate * factor)
        )
        return Change(change, value=factor)

    yield Suspect(
        "an update by a multiple of the learning rate",
        "an update by {} times the learning rate",
        UPDATE,
        solve=times,
        guesses=(1.0, 0.5),
    )
    for words, where, decay in (
        ("in the update", UPDATE, _decayed),
        ("in the gradient, after clipping", CLIPPING, _decayed_clipped),
    ):
        yield Suspect(
            f"a weight decay {words}",
            f"a weight decay of {{}} {words}",
            where,
            faults=("weight-decay",),
            solve=lambda decay_rate, decay=decay: Change(
                decay(case, decay_rate), value=decay_rate
            ),  # type: ignore[misc]
            guesses=(0.0, 1e-3),
        )


def _with_rate(rate: float) -> Replacements:
    return updated(
        lambda update, spec, snapshot, slots, g, _: update(spec, snapshot, slots, g, rate)
    )


def _decayed(case: WrongStep, decay: float) -> Replacements:
    def change(
        update: Any, spec: Any, snapshot: Tensors, slots: Any, gradients: Any, rate: float
    ) -> Arrays:
        after = update(spec, snapshot, slots, gradients, rate)
        return {n: w - rate * decay * snapshot[n] for n, w in after.items()}

    return updated(change)


def _decayed_clipped(case: WrongStep, decay: float) -> Replacements:
    @wraps(clip_by_global_norm)
    def clip(gradients: Arrays, clip_norm: float) -> Any:
        clipped, norm = original(clip_by_global_norm)(gradients, clip_norm)
        weights = {n: np.asarray(case.snapshot[f"weight/{n}"], np.float64) for n in clipped}
        return {n: g + decay * weights[n] for n, g in clipped.items()}, norm

    return {clip_by_global_norm: clip}


def _parameters(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in which some weights are updated in another way than the others."""
    wrong = [name.removeprefix("weight/") for name in case.wrong if name.startswith("weight/")]
    if not wrong or len(wrong) == len(case.parameters()):
        return
    listed = ", ".join(wrong)

    def times(factor: float) -> Replacements:
        def change(
            update: Any, spec: Any, snapshot: Any, slots: Any, gradients: Any, rate: float
        ) -> Arrays:
            after = update(spec, snapshot, slots, gradients, rate)
            for name in (f"weight/{each}" for each in wrong):
                after[name] = snapshot[name] + factor * (after[name] - snapshot[name])
            return dict(after)

        return updated(change)

    yield suspect(
        f"{listed} left out of the update",
        UPDATE,
        times(0),
        faults=("one-weight-frozen", "one-weight-frozen", "one-weight-frozen"),
    )
    yield suspect(f"the update of {listed} doubled", UPDATE, times(2), faults=("two-biases",))
    yield suspect(f"the update of {listed} in the other direction", UPDATE, times(-1))


def _with_training(**values: Any) -> Replacements:
    """Return replacements in which both parts of the update read other constants."""

    @wraps(update_slots)
    def slots(spec: Spec, *rest: Any) -> Arrays:
        return original(update_slots)(spec.replace(**values), *rest)

    @wraps(update_weights)
    def weights(spec: Spec, *rest: Any) -> Arrays:
        return original(update_weights)(spec.replace(**values), *rest)

    return {update_slots: slots, update_weights: weights}


def _constants(case: WrongStep) -> Iterator[Suspect]:
    """Yield suspects in Adam's constants."""
    training = case.spec.training
    for epsilon in _EPSILONS:
        if epsilon == training.epsilon:
            continue
        yield suspect(
            f"an epsilon of {epsilon:g}, not {training.epsilon:g}",
            UPDATE,
            _with_training(epsilon=epsilon),
            faults=("epsilon-of-keras",) if epsilon == 1e-7 else (),
        )
    for epsilon in {training.epsilon, *_EPSILONS}:
        own = epsilon == training.epsilon
        words = "" if own else f" of {epsilon:g}"
        yield suspect(
            f"an epsilon{words} added before the bias correction",
            UPDATE,
            _epsilon_inside(epsilon),
            faults=("epsilon-inside",) if own else (),
        )
    for name, others in (
        ("beta1", (0.5, 0.8, 0.95, 0.99)),
        ("beta2", (0.9, 0.95, 0.98, 0.99, 0.9999)),
    ):
        for value in others:
            if value != getattr(training, name):
                yield suspect(
                    f"a {name} of {value:g}",
                    OPTIMIZER,
                    _with_training(**{name: value}),
                    faults=("beta2",) if (name, value) == ("beta2", 0.99) else (),
                )
    if training.dtype == "float64":
        betas = {n: float(np.float32(getattr(training, n))) for n in ("beta1", "beta2")}
        yield suspect(
            "Adam's constants rounded to float32",
            OPTIMIZER,
            _with_training(**betas, epsilon=float(np.float32(training.epsilon))),
            _with_training(**betas),
            faults=("constants-in-float32",),
        )


def _epsilon_inside(epsilon: float) -> Replacements:
    """Return replacements with sqrt(v) + epsilon, which the bias correction then divides."""

    def change(
        update: Any, spec: Spec, snapshot: Tensors, slots: Any, gradients: Any, rate: float
    ) -> Arrays:
        (rounded,) = in_precision(spec, epsilon)
        grown = float(rounded / np.sqrt(1 - snapshot["optimizer/beta2_power"]))
        training = replace(spec.training, epsilon=grown)
        return dict(update(replace(spec, training=training), snapshot, slots, gradients, rate))

    return updated(change)


def _powers(count: int) -> Iterator[Suspect]:
    """Yield suspects in the powers of beta1 and beta2, and in the bias correction."""

    @wraps(update_slots)
    def still(spec: Spec, snapshot: Tensors, gradients: Tensors) -> Arrays:
        after = original(update_slots)(spec, snapshot, gradients)
        return after | {n: snapshot[n] for n in after if n.endswith("_power")}

    yield suspect(
        "the powers of beta1 and beta2 not updated",
        OPTIMIZER,
        {update_slots: still},
        faults=("powers-stand-still", "steps-of-first-worker"),
    )
    if count > 1:

        @wraps(update_slots)
        def each(spec: Spec, snapshot: Tensors, gradients: Tensors) -> Arrays:
            after = original(update_slots)(spec, snapshot, gradients)
            betas = in_precision(spec, spec.training.beta1, spec.training.beta2)
            for name, beta in zip(("beta1", "beta2"), betas, strict=True):
                key = f"optimizer/{name}_power"
                after[key] = after[key] * beta ** (count - 1)
            return after

        yield suspect(
            "the powers of beta1 and beta2 updated once for each replica",
            OPTIMIZER,
            {update_slots: each},
            faults=("mirrored-steps-per-replica",),
        )
    both = ("beta1", "beta2")
    for names in (both[:1], both[1:], both):
        words = " and ".join(names)
        for text, change, faults in (
            ("one step too late", lambda p, b: p * b, ("powers-late",)),
            ("one step too early", lambda p, b: p / b, ()),
            ("left out", lambda p, b: p * 0, ("no-bias-correction",)),
        ):
            yield suspect(
                f"the bias correction of {words} {text}",
                UPDATE,
                _corrected(names, change),
                faults=faults,
            )


def _corrected(names: tuple[str, ...], change: Callable[[Any, float], Any]) -> Replacements:
    """Return replacements in which the bias correction reads changed powers."""

    def update(
        update: Any, spec: Spec, snapshot: Tensors, slots: Any, gradients: Any, rate: float
    ) -> Arrays:
        powers = {}
        for name in names:
            (beta,) = in_precision(spec, getattr(spec.training, name))
            key = f"optimizer/{name}_power"
            powers[key] = change(snapshot[key], beta)
        return dict(update(spec, {**snapshot, **powers}, slots, gradients, rate))

    return updated(update)
