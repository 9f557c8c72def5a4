"""The suspects, as one table: a row is a mistake, where it shows first, and how to make it.

Each function yields the rows of one rung that may occur in a run: none for dropout where there
is no dropout, none for Adam's constants where the optimiser is SGD. A row has the same name in
every step, so that a mistake found in one step can be made again in the others; its sentence
may have the numbers of the step.

Only general mistakes have a row. Where a number tells one from another, such as 1 or 2 added to
the forget gate, one row solves for the number.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import numpy as np

from parity.twins.compare.causes.views import (
    attention_over_padding,
    clipped,
    cut_in_time,
    decoder_starts,
    divided,
    gates_in_order,
    given,
    in_replicas,
    keys_times,
    moved,
    norm_of,
    returned,
    runs_on,
    scaled_by,
    scaled_gradients,
    see_weights,
    summed,
    updated,
    with_masks,
    with_state,
    with_targets,
    with_training,
)
from parity.twins.compare.causes.wrong_step import (
    CLIPPING,
    FORWARD,
    GRADIENT,
    LOSS,
    NARROWER,
    OPTIMIZER,
    SCHEDULE,
    UPDATE,
    Arrays,
    Change,
    Replacements,
    Suspect,
    Tensors,
    WrongStep,
    computed_in,
    rounded,
    rounded_number,
    solved,
    suspect,
    telling,
)
from parity.twins.compare.tensor_axes import GATES
from parity.twins.oracle.optimizers import clip_by_global_norm, in_precision
from parity.twins.oracle.training import as_float64
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replaceable import original
from parity.twins.spec.spec import Spec, learning_rate
from parity.twins.spec.step_arrays import dropout_masks

_DECODER = "forward/[da]*"  # with input feeding, what is fed reaches the bottom layer
_EPSILONS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_BETAS = ("beta1", "beta2")
# cell -> what stands before a time step -> the places of these states
_STATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "lstm": {"h": (0,), "c": (1,), "h and c": (0, 1)},
    "gru": {"h": (0,)},
}


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield every mistake that may have been made in a step."""
    for rows, starts in _RUNGS.items():
        for row in rows(case):
            yield row if row.starts else replace(row, starts=starts)


def _dropout(case: WrongStep) -> Iterator[Suspect]:
    masks, keep = case.inputs.masks, case.spec.model.keep
    if not masks:
        return

    def drawn(step: int) -> Replacements:
        batch = case.inputs.batch
        return with_masks(lambda masks: _like(masks, dropout_masks(case.spec, step, batch)))

    def inverted(mask: np.ndarray) -> np.ndarray:
        kept: np.ndarray = (mask == 0).astype(mask.dtype) / mask.dtype.type(1 - keep)
        return kept

    def held(mask: np.ndarray) -> np.ndarray:
        return np.repeat(mask[:, :1], mask.shape[1], axis=1) if mask.ndim == 3 else mask

    yield suspect("no dropout", with_masks(lambda masks: {}))
    yield suspect(
        "dropout that does not scale what it keeps",
        with_masks(_each(lambda mask: mask * mask.dtype.type(keep))),
        faults="mask-not-scaled",
    )
    yield suspect(
        "dropout that keeps what it should drop",
        with_masks(_each(inverted)),
        faults="keep-is-drop",
    )
    yield suspect(
        "one dropout mask for all time steps, that of the first", with_masks(_each(held))
    )
    for place in masks:
        top = place == list(masks)[-1]
        yield suspect(
            f"no dropout at {place}",
            with_masks(partial(_without, place)),
            faults="no-dropout-at-the-top" if top else "sent-before-dropout",
        )
        for other in masks:
            if place != other and masks[place].shape == masks[other].shape:
                yield suspect(
                    f"the dropout mask of {other} at {place}",
                    with_masks(partial(lambda m, a, b: {**m, a: m[b]}, a=place, b=other)),
                    faults="mask-of-other-layer",
                )
    steps = {"step 0": 0, "the step before": case.step - 1, "the step after": case.step + 1}
    for words, step in steps.items():
        if step >= 0 and step != case.step:
            yield suspect(
                f"the dropout masks of {words}",
                drawn(step),
                by_row=False,
                faults="mask-of-first-step" * (not step),
            )


def _without(name: str, arrays: Tensors) -> Arrays:
    """Return all arrays but one."""
    return {other: array for other, array in arrays.items() if other != name}


def _each(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Arrays]:
    """Return a function that changes every array."""
    return lambda arrays: {name: change(array) for name, array in arrays.items()}


def _like(arrays: Tensors, others: Tensors) -> Arrays:
    """Return other arrays in the precision of the first."""
    return {name: others[name].astype(array.dtype) for name, array in arrays.items()}


def _targets(case: WrongStep) -> Iterator[Suspect]:
    if "targets" not in case.inputs.batch:
        return
    row = partial(suspect, by_row=False, where="forward/token_loss")
    for words, by, faults in (("late", -1, "targets-late"), ("early", 1, "")):
        yield row(
            f"targets one step too {words}",
            in_replicas(
                with_targets(partial(lambda b, by: np.roll(b["targets"], by, axis=1), by=by))
            ),
            faults=faults,
        )
    yield row(
        "the tokens read as the targets",
        given(with_targets(lambda batch: batch["tokens"])),
        faults="block-reads-tokens-as-targets",
    )


def _states(case: WrongStep) -> Iterator[Suspect]:
    if not case.carries:
        return
    left = case.left
    if case.inputs.carry:
        yield suspect(
            "the state not carried from the batch before",
            with_state(_each(np.zeros_like)),
            faults="state-not-carried",
        )
    elif left is not None and len(next(iter(left.values()))) == case.inputs.rows:
        yield suspect(
            "the state carried although the batch starts anew",
            with_state(lambda state: _like(state, left)),
            faults="state-not-reset",
            by_row=False,
        )
    if set(case.state) == {"h", "c"}:
        yield suspect(
            "h and c read as each other",
            with_state(lambda state: {"h": state["c"], "c": state["h"]}),
        )
        yield suspect(
            "h and c passed on as each other",
            returned(lambda a, gradients: (a | {"h": a["c"], "c": a["h"]}, gradients)),
            where="forward/[ch]",
            faults="state-swapped",
        )


def _weights(case: WrongStep) -> Iterator[Suspect]:
    for name in case.parameters("kernel"):
        shape = case.snapshot[f"weight/{name}"].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            yield suspect(
                f"{name} transposed",
                see_weights([name], np.transpose, np.transpose),
                faults="square-kernel-transposed" * name.startswith("attention"),
            )
    tables = case.parameters("/table")
    yield solved(
        "embeddings multiplied by {}",
        lambda factor: see_weights(tables, lambda w: w * factor, lambda d: d * factor),
        (1.0, 2.0),
        where="forward/*embedded",
        faults="embedding-root",
    )
    for name in case.parameters():
        constant = float(name == "attention/scale")
        yield suspect(
            f"{name} left out",
            see_weights([name], partial(np.full_like, fill_value=constant), np.zeros_like),
            faults="attention-scale-left-out" * bool(constant),
        )
        for dtype in NARROWER[case.spec.training.dtype]:
            yield suspect(
                f"{name} rounded to {dtype}",
                see_weights([name], partial(rounded, dtype=dtype), lambda d: d),
                faults="half-precision-weight" * (dtype == "float16"),
            )


def _cells(case: WrongStep) -> Iterator[Suspect]:
    cell, gates = case.cell, GATES[case.cell]
    biases = [f"{layer}/bias" for layer in case.layers()]

    def added(which: str, constant: float) -> Replacements:
        by_gate = np.array([constant if gate in which else 0.0 for gate in gates])

        def see(bias: np.ndarray) -> np.ndarray:
            more = np.repeat(by_gate.astype(bias.dtype), len(bias) // len(gates))
            found: np.ndarray = bias + more
            return found

        return see_weights(biases, see, lambda d: d)

    yield suspect(
        "each layer's bias added twice",
        *(
            see_weights(biases, lambda b: 2 * b, back)
            for back in (lambda d: 2 * d, lambda d: d)
        ),
        faults="bias-twice",
    )
    for which in (*gates, "rz") if cell == "gru" else gates:
        place = f"gate{'s' * (len(which) - 1)} {' and '.join(which)}"
        yield solved(
            f"{{}} added to {place}",
            partial(added, which),
            (0.0, 1.0),
            name=f"a constant added to {place}",
            faults={"f": "forget-bias", "rz": "gru-gate-bias"}.get(which, ""),
        )
    orders = [each for each in permutations(range(len(gates))) if each != tuple(sorted(each))]
    # exchanges of two gates before other orders
    for order in sorted(
        orders, key=lambda each: sum(at != gate for at, gate in enumerate(each))
    ):
        moves = [gates[at] for at, gate in enumerate(order) if at != gate]
        name, fault = f"gates in the order {', '.join(gates[at] for at in order)}", ""
        if len(moves) == 2:
            name = f"gates {moves[0]} and {moves[1]} exchanged"
            fault = f"{cell}-gates-{'-'.join(moves)}"
        # some sides differentiate an LSTM themselves
        derived = (True, False) if cell == "lstm" else (True,)
        yield suspect(
            name, *(gates_in_order(cell, order, derived=each) for each in derived), faults=fault
        )


def _masks(case: WrongStep) -> Iterator[Suspect]:
    """Yield mistakes with what lies past the end of a row."""
    yield suspect(
        "a state that goes on changing past the end of each row",
        runs_on(output=False),
        runs_on(output=True),
        faults="state-runs-on",
        by_row=False,
    )
    if "attention/weights" in case.activations:
        yield suspect(
            "attention that also looks at padding",
            attention_over_padding(),
            faults="attention-not-masked",
            by_row=False,
            where=_DECODER,
        )


def _attention(case: WrongStep) -> Iterator[Suspect]:
    if "attention/weights" not in case.activations:
        return
    yield solved(
        "scores multiplied by {}",
        keys_times,
        (1.0, 1.1),
        where=_DECODER,
        faults="attention-root",
    )
    yield suspect(
        "a decoder that starts from zeros",
        decoder_starts(lambda states: [tuple(map(np.zeros_like, each)) for each in states]),
        faults="decoder-starts-from-zero",
        where=_DECODER,
    )
    yield suspect(
        "the decoder's layers starting from the encoder's in the other order",
        decoder_starts(lambda states: states[::-1]),
        faults="decoder-starts-upside-down",
        where=_DECODER,
    )


def _loss(case: WrongStep) -> Iterator[Suspect]:
    inputs, count, true = case.inputs, len(case.sizes), case.inputs.loss_divisor
    counts = {
        "all positions, padding included": (inputs.positions, "pads-counted"),
        "the rows": (inputs.rows, "per-sentence"),
        "the real tokens": (inputs.num_tokens, ""),
        "the tokens without each row's last": (
            inputs.num_tokens - inputs.rows,
            "end-not-counted",
        ),
        "nothing": (1, ""),
    }
    for words, (number, faults) in counts.items():
        if number > 0 and number != true:
            yield suspect(
                f"divided by {words}",
                divided([number] * count),
                sentence=f"the loss divided by {words} ({number:g}, not {true})",
                faults=faults,
            )
    for factor, words in case.factors("summed twice").items():
        yield suspect(f"the loss {words}", divided([true / factor] * count))
    yield suspect(
        "no loss and no gradient of the batch",
        divided([np.inf] * count),
        faults="partial-batch-untrained",
    )
    if count > 1:
        own = [max(1, each) for each in _tokens(case)]
        words = "each replica's loss divided by its own tokens"
        yield suspect(words, divided(own), faults="process-loss-per-own-tokens")
        yield suspect(
            f"{words} and by the number of replicas",
            divided([each * count for each in own]),
            faults="mean-of-means",
        )
    seen, exact = (
        np.asarray(tensors.get("loss/replicas", np.zeros(count)), np.float64) * true
        for tensors in (case.recorded, case.expected)
    )
    for dtype in NARROWER[case.spec.training.dtype]:
        if computed_in(dtype, seen, exact):
            near = rounded(seen, dtype)
            # the derivative of a cast casts as well: there the divisor's inverse
            inverse = 1 / rounded_number(1 / true, dtype)
            yield suspect(
                f"the sum of the losses computed in {dtype}",
                Change(divided([inverse] * count, near * inverse / true)),
                Change(divided([true] * count, near)),
            )
    yield solved(
        f"the loss divided by {{}}, not by {true}",
        lambda number: divided([number] * count),
        (float(true), _solved_divisor(case)),
        name="the loss divided by another number",
    )


def _tokens(case: WrongStep) -> list[int]:
    """Return the number of real tokens of each replica."""
    lengths, bounds = case.inputs.batch["lengths"], np.cumsum([0, *case.sizes])
    return [int(lengths[a:b].sum()) for a, b in pairwise(bounds)]


def _solved_divisor(case: WrongStep) -> float:
    """Return the divisor that gives the recorded loss."""
    found, expected = (
        float(np.sum(tensors.get("loss/replicas", 0.0), dtype=np.float64))
        for tensors in (case.recorded, case.expected)
    )
    return case.inputs.loss_divisor * expected / found if found else 1.0


def _gradients(case: WrongStep) -> Iterator[Suspect]:
    names, count = case.parameters(), len(case.sizes)
    wrong = [name for name in names if f"gradient/{name}" in case.wrong]
    if 0 < len(wrong) < len(names):
        listed, few = ", ".join(wrong), partial(scaled_gradients, wrong)
        yield suspect(f"no gradient of {listed}", few(0), faults="nothing-sent-back")
        yield solved(
            f"the gradient of {listed} multiplied by {{}}",
            few,
            (1.0, 0.5),
            faults="sent-back-twice",
        )
        yield from _means(case, wrong)
    for states, places in _STATES.get(case.cell, {}).items():
        yield suspect(
            f"no gradient through {states} from a time step to the one before",
            cut_in_time(places),
            faults="cut-in-time" * (places == (0,)),
        )
    averaged = "gradient-averaged workers-averaged micro-batches-averaged"
    for factor, words in case.factors("summed twice").items():
        yield suspect(
            f"the gradient {words}",
            scaled_gradients(names, factor),
            faults=averaged if factor < 1 else "gradient-times-replicas",
        )
    yield solved(
        "the gradient multiplied by {}",
        partial(scaled_gradients, names),
        (1.0, 0.5),
        name="the gradient multiplied by a factor",
        faults="workers-averaged micro-batches-averaged",
    )
    for dtype in NARROWER[case.spec.training.dtype]:
        near = _each(partial(rounded, dtype=dtype))
        yield suspect(
            f"the gradient rounded to {dtype}",
            returned(partial(lambda a, g, near: (a, near(g)), near=near)),
        )
        if count > 1:
            yield suspect(
                f"the replicas' gradients rounded to {dtype} before the sum",
                in_replicas(
                    combine=partial(lambda parts, near: summed([*map(near, parts)]), near=near)
                ),
                faults="process-half-precision" * (dtype == "float16"),
            )
    if count > 1:
        yield from _replicas(case)


def _means(case: WrongStep, wrong: list[str]) -> Iterator[Suspect]:
    """Yield gradients of parameters that each replica averages, where it is to sum."""
    network, batch = NETWORKS[case.spec.network], case.inputs.batch
    # what an encoder sums over is its own time axis
    encoder = [axis for axis in network.lengths if axis != "time"]

    def terms(name: str, count: str) -> list[int]:
        axis = encoder[0] if encoder and name.startswith("encoder/") else "time"
        lengths, bounds = batch[network.lengths[axis]], np.cumsum([0, *case.sizes])
        parts = [lengths[a:b] for a, b in pairwise(bounds)]
        of = {
            "positions": lambda part: len(part) * max(1, int(part.max())),
            "real tokens": lambda part: max(1, int(part.sum())),
            "rows": len,
        }[count]
        return [of(part) for part in parts]

    def combined(count: str, parts: list[Arrays]) -> Arrays:
        return summed(
            [
                g | {n: g[n] / terms(n, count)[replica] for n in wrong}
                for replica, g in enumerate(parts)
            ]
        )

    for count, faults in (
        ("positions", "loop-bias-averaged"),
        ("real tokens", ""),
        ("rows", ""),
    ):
        yield suspect(
            f"the gradient of {', '.join(wrong)} a mean over each replica's {count}, not a sum",
            in_replicas(combine=partial(combined, count)),
            faults=faults,
        )


def _replicas(case: WrongStep) -> Iterator[Suspect]:
    """Yield the mistakes in how the replicas' gradients become one.

    A replica's part is the gradient of its mean loss, weighted by its share of the tokens.
    """
    count, limit = len(case.sizes), case.spec.training.clip_norm
    for r in range(count):
        yield suspect(
            f"the gradient of replica {r} alone",
            in_replicas(combine=partial(lambda p, r: p[min(r, len(p) - 1)], r=r)),
            faults="nothing-reduced" * (not r),
            apart=True,
        )
    yield suspect(
        f"each replica's gradient clipped to the limit ({limit:g}) before the sum",
        in_replicas(combine=lambda parts: summed([_clip(part, limit) for part in parts])),
        faults="clipped-per-replica",
    )
    tokens = np.array(_tokens(case))
    if not tokens.all():
        return
    shares, rows = tokens / tokens.sum(), np.array(case.sizes) / sum(case.sizes)
    weights: dict[str, tuple[np.ndarray, str]] = {
        "averaged with equal weights": (
            np.full(count, 1 / count),
            "average-with-equal-weights",
        ),
        "averaged by rows": (rows, "average-by-rows"),
        "weighted by tokens twice": (shares**2, "average-weighted-twice"),
        "summed, each that of a mean": (np.ones(count), "means-summed"),
        "averaged by each other's tokens": (shares[::-1], "average-by-weights-of-others"),
    }
    if case.side.averages_replicas_alike:
        weights["averaged by tokens"] = shares, "tokens-for-equal"
    for words, (own, fault) in weights.items():
        yield suspect(
            f"the replicas' gradients {words}",
            in_replicas(combine=partial(_weighted, factors=own / shares)),
            faults=fault,
        )


def _clip(gradients: Arrays, limit: float) -> Arrays:
    return original(clip_by_global_norm)(gradients, limit)[0]


def _weighted(parts: list[Arrays], factors: np.ndarray) -> Arrays:
    pairs = zip(factors, parts, strict=True)
    return summed([{n: factor * g for n, g in part.items()} for factor, part in pairs])


def _clipping(case: WrongStep) -> Iterator[Suspect]:
    limit = case.spec.training.clip_norm

    def row(name: str, *clips: Any, **values: Any) -> Suspect:
        return suspect(name, *map(clipped, clips), **values)

    def one_by_one(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
        return {n: _clip({n: g}, limit)[n] for n, g in gradients.items()}, norm_of(gradients)

    def by_value(number: float) -> Replacements:
        most = abs(number)
        return clipped(lambda g, _: (_each(lambda a: np.clip(a, -most, most))(g), norm_of(g)))

    yield row("no clipping", lambda g, limit: (g, norm_of(g)), faults="not-clipped")
    yield row("each gradient clipped by its own norm", one_by_one, faults="clipped-one-by-one")
    yield row(
        "the gradient always scaled to the limit",
        lambda g, limit: (_each(lambda a: a * (limit / norm_of(g)))(g), norm_of(g)),
    )
    for epsilon in _EPSILONS:
        # some operations take their constants in float32 only
        yield row(
            f"clipping that divides by the norm plus {epsilon:g}",
            *(
                scaled_by(partial(np.add, each))
                for each in (epsilon, float(np.float32(epsilon)))
            ),
            faults="norm-epsilon" * (epsilon == 1e-6),
        )
    for factor, words in case.factors().items():
        yield row(f"the limit {words} ({limit * factor:g})", scaled_by(factor=factor))
    seen, exact = (
        np.asarray(tensors["gradient_norm"], np.float64)
        for tensors in (case.recorded, case.expected)
    )
    for dtype in NARROWER[case.spec.training.dtype]:
        if computed_in(dtype, seen, exact):
            scale = limit / max(limit, float(seen))
            yield row(
                f"the norm of the gradient computed in {dtype}",
                lambda g, _, scale=scale: (_each(lambda a: a * scale)(g), np.float64(seen)),
            )
        near = rounded_number(limit, dtype)
        if near != limit:
            yield row(
                f"the limit rounded to {dtype} ({telling(near, limit)}, not {limit:g})",
                scaled_by(factor=near / limit),
            )
        yield row(
            f"the norm rounded to {dtype}", scaled_by(partial(rounded_number, dtype=dtype))
        )
    for name in case.parameters():
        yield row(
            f"a norm that leaves out {name}",
            scaled_by(of=partial(_without, name)),
            faults="norm-without-embedding" * name.endswith("table"),
        )
    yield solved(
        "each element of the gradient clipped to ±{}",
        by_value,
        (_largest_clipped(case), limit),
        faults="clipped-by-value",
        name="each element of the gradient clipped to a limit",
    )
    yield solved(
        f"clipping to {{}} in place of {limit:g}",
        lambda number: clipped(scaled_by(factor=number / limit)),
        (limit, limit / 2),
        name="clipping to another limit",
    )


def _largest_clipped(case: WrongStep) -> float:
    """Return the largest element of the clipped gradients."""
    arrays = [a for n, a in case.recorded.items() if n.startswith("clipped_gradient/")]
    return max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=1.0)


def _schedules(case: WrongStep) -> Iterator[Suspect]:
    """Yield schedules that have another rate for the step, and had the right one before."""
    training, per_epoch = case.spec.training, case.per_epoch
    schedules: dict[str, tuple[Callable[[int], float], str]] = {
        "decays an epoch too early": (lambda step: step // per_epoch + 1, "schedule-early"),
        "decays an epoch too late": (lambda step: step // per_epoch - 1, "schedule-late"),
        "decays a step too late": (lambda step: (step - 1) // per_epoch, ""),
        "decays with every step": (lambda step: step, "schedule-by-step"),
        "never decays": (lambda step: 0, ""),
    }
    if not case.side.synchronous:
        workers = case.side.replicas
        schedules["decays by the steps of all workers together"] = (
            lambda step: step * workers // per_epoch,
            "rate-by-steps-of-all",
        )
    for words, (epoch_of, fault) in schedules.items():
        rates = [
            learning_rate(training, max(int(epoch_of(s)), 0)) for s in range(case.step + 1)
        ]
        right = [learning_rate(training, s // per_epoch) for s in range(case.step + 1)]
        # a rate that was wrong in an earlier step would have been found there
        if rates[-1] != right[-1] and (not case.is_first or rates[:-1] == right[:-1]):
            yield suspect(
                f"a learning rate that {words}", Change({}, rate=rates[-1]), faults=fault
            )


def _updates(case: WrongStep) -> Iterator[Suspect]:
    training, true = case.spec.training, case.rate
    epoch, before = case.step // case.per_epoch, max(case.step - 1, 0)

    def by_rate(change: Callable[[float], float]) -> Replacements:
        return updated(lambda update, *rest: update(*rest[:-1], change(rest[-1])))

    rates = {
        "of the first epoch": (training.learning_rate, "rate-not-passed-on"),
        "of the epoch before": (learning_rate(training, max(epoch - 1, 0)), ""),
        "of the step before": (learning_rate(training, before // case.per_epoch), ""),
        "of the next epoch": (learning_rate(training, epoch + 1), ""),
        "of 1": (1.0, "served-without-rate"),
    }
    for dtype in NARROWER[training.dtype]:
        rates[f"rounded to {dtype}"] = rounded_number(true, dtype), ""
    for words, (rate, faults) in rates.items():
        if rate != true:
            yield suspect(
                f"an update by the learning rate {words}",
                by_rate(partial(lambda _, rate: rate, rate=rate)),
                sentence=f"an update by the learning rate {words} "
                f"({telling(rate, true)}, not {true:g})",
                faults=faults,
            )
    yield suspect("no update of the weights", moved(0), faults="lost-update")
    if training.optimizer == "sgd" and case.before is not None:
        yield solved("a momentum of {} in SGD", partial(_momentum, case.before), (0.0, 0.9))
    several = "update-applied-twice mirrored-updated-per-replica mirrored-rate-times-replicas"
    for factor, words in case.factors("applied twice").items():
        yield suspect(
            f"the update {words}",
            by_rate(partial(lambda rate, by: rate * by, by=factor)),
            faults=several * (factor > 1),
        )
    yield solved(
        "an update by {} times the learning rate",
        lambda factor: by_rate(lambda rate: rate * factor),
        (1.0, 0.5),
        name="an update by a multiple of the learning rate",
        faults=several,
    )
    wrong = [name.removeprefix("weight/") for name in case.wrong if name.startswith("weight/")]
    if 0 < len(wrong) < len(case.parameters()):
        listed = ", ".join(wrong)
        yield suspect(
            f"{listed} left out of the update", moved(0, wrong), faults="one-weight-frozen"
        )
        yield solved(
            f"the update of {listed} multiplied by {{}}",
            lambda factor: moved(factor, wrong),
            (1.0, 2.0),
            faults="two-biases",
        )

    def unclipped(update: Any, *rest: Any) -> Arrays:
        spec, snapshot, slots, gradients, rate = rest
        own = {n: np.asarray(case.recorded[f"gradient/{n}"], np.float64) for n in gradients}
        return dict(update(spec, snapshot, slots, own, rate))

    if training.optimizer == "sgd":  # Adam's reads its moments alone
        yield suspect(
            "an update by the gradient before clipping",
            updated(unclipped),
            faults="worker-does-not-clip",
        )
    yield from _decays(case)


def _momentum(before: tuple[Tensors, float], factor: float) -> Replacements:
    """Return an update by a mean of all gradients: the step before moved by the last one."""
    weights, rate_before = before

    def change(update: Any, spec: Spec, snapshot: Tensors, *rest: Any) -> Arrays:
        after, share = update(spec, snapshot, *rest), factor * rest[-1] / rate_before
        return {n: w + share * (snapshot[n] - as_float64(weights[n])) for n, w in after.items()}

    return updated(change)


def _decays(case: WrongStep) -> Iterator[Suspect]:
    """Yield weight decay, before the optimiser's arithmetic and after it."""

    def decayed(decay: float) -> Replacements:
        def change(update: Any, spec: Spec, snapshot: Tensors, *rest: Any) -> Arrays:
            after = update(spec, snapshot, *rest)
            return {n: w - rest[-1] * decay * snapshot[n] for n, w in after.items()}

        return updated(change)

    def decayed_gradient(decay: float) -> Replacements:
        def clip(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
            weights = {
                n: np.asarray(case.snapshot[f"weight/{n}"], np.float64) for n in gradients
            }
            found, norm = original(clip_by_global_norm)(gradients, limit)
            return {n: g + decay * weights[n] for n, g in found.items()}, norm

        return clipped(clip)

    for words, starts, decay in (
        ("in the update", UPDATE, decayed),
        ("in the gradient, after clipping", CLIPPING, decayed_gradient),
    ):
        yield solved(
            f"a weight decay of {{}} {words}",
            decay,
            (0.0, 1e-3),
            name=f"a weight decay {words}",
            faults="weight-decay",
            starts=starts,
        )


def _adam(case: WrongStep) -> Iterator[Suspect]:
    training = case.spec.training
    if training.optimizer != "adam":
        return
    for epsilon in sorted({training.epsilon, *_EPSILONS[1:]}):
        own = epsilon == training.epsilon
        if not own:
            yield suspect(
                f"an epsilon of {epsilon:g}, not {training.epsilon:g}",
                with_training(epsilon=epsilon),
                faults="epsilon-of-keras" * (epsilon == 1e-7),
            )
        yield suspect(
            f"an epsilon{'' if own else f' of {epsilon:g}'} added before the bias correction",
            updated(partial(_epsilon_inside, epsilon)),
            faults="epsilon-inside" * own,
        )
    for name in _BETAS:
        yield solved(
            f"a {name} of {{}}",
            partial(lambda value, name: with_training(**{name: value}), name=name),
            (getattr(training, name), 0.95),
            starts=OPTIMIZER,
            name=f"another {name}",
            faults="beta2" * (name == "beta2"),
        )
    for dtype in NARROWER[training.dtype]:
        betas = {n: rounded_number(getattr(training, n), dtype) for n in _BETAS}
        if all(0 < beta < 1 for beta in betas.values()):
            # a half-precision epsilon is zero, which is no constant of a run
            epsilon = rounded_number(training.epsilon, dtype) or training.epsilon
            yield suspect(
                f"Adam's constants rounded to {dtype}",
                *(with_training(**betas, epsilon=e) for e in (epsilon, training.epsilon)),
                starts=OPTIMIZER,
                faults="constants-in-float32" * (dtype == "float32"),
            )
    for names in (("beta1",), ("beta2",), ("beta1", "beta2")):
        for words, change, faults in (
            ("one step too late", lambda p, b: p * b, "powers-late"),
            ("one step too early", lambda p, b: p / b, ""),
            ("left out", lambda p, b: p * 0, "no-bias-correction"),
        ):
            yield suspect(
                f"the bias correction of {' and '.join(names)} {words}",
                updated(partial(_corrected, names, change)),
                faults=faults,
            )
    yield suspect("Nesterov's momentum in Adam", updated(_nesterov))


def _epsilon_inside(
    epsilon: float, update: Any, spec: Spec, snapshot: Tensors, *rest: Any
) -> Arrays:
    """Update by sqrt(v) + epsilon, which the bias correction then divides."""
    (near,) = in_precision(spec, epsilon)
    grown = float(near / np.sqrt(1 - snapshot["optimizer/beta2_power"]))
    spec = replace(spec, training=replace(spec.training, epsilon=grown))
    return dict(update(spec, snapshot, *rest))


def _corrected(
    names: tuple[str, ...],
    change: Callable[[Any, float], Any],
    update: Any,
    spec: Spec,
    snapshot: Tensors,
    *rest: Any,
) -> Arrays:
    """Update with a bias correction that reads changed powers."""
    powers: Mapping[str, Any] = {
        f"optimizer/{n}_power": change(
            snapshot[f"optimizer/{n}_power"], *in_precision(spec, getattr(spec.training, n))
        )
        for n in names
    }
    return dict(update(spec, {**snapshot, **powers}, *rest))


def _nesterov(
    update: Any, spec: Spec, snapshot: Tensors, slots: Tensors, gradients: Tensors, rate: float
) -> Arrays:
    """Update by the moments that the next step would have for the same gradient."""
    (beta1,) = in_precision(spec, spec.training.beta1)
    ahead = {
        f"optimizer/{n}/m": beta1 * slots[f"optimizer/{n}/m"] + (1 - beta1) * g
        for n, g in gradients.items()
    }
    return dict(update(spec, snapshot, {**slots, **ahead}, gradients, rate))


# Rows -> where they show first; in the order of computation, but for the orders of gates, which
# are the most.
_RUNGS: dict[Callable[[WrongStep], Iterator[Suspect]], tuple[str, ...]] = {
    _dropout: FORWARD,
    _targets: FORWARD,
    _states: FORWARD,
    _weights: FORWARD,
    _masks: FORWARD,
    _attention: FORWARD,
    _loss: LOSS,
    _gradients: GRADIENT,
    _clipping: CLIPPING,
    _schedules: SCHEDULE,
    _updates: UPDATE,
    _adam: UPDATE,
    _cells: FORWARD,
}
