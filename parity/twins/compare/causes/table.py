"""The suspects, as one table: a row is a mistake, where it shows first, and how to make it.

Each function yields the rows of one rung that may occur in a run: none for dropout where there
is no dropout, none for Adam's constants where the optimiser is SGD. A row has the same name in
every step, so that a mistake found in one step can be made again in the others; its sentence
may have the numbers of the step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, permutations
from typing import Any

import numpy as np

from parity.base.replaceable import original
from parity.twins.compare.causes.numbers import NARROWER, rounded, rounded_number, telling
from parity.twins.compare.causes.suspect import (
    CLIPPING,
    FORWARD,
    GRADIENT,
    LOSS,
    OPTIMIZER,
    SCHEDULE,
    UPDATE,
    Arrays,
    Change,
    Replacements,
    Suspect,
    Tensors,
    WrongStep,
    solved,
    suspect,
)
from parity.twins.compare.causes.views import (
    Share,
    attention_over,
    clipped,
    decoder_starts,
    divided,
    first_steps,
    gates_in_order,
    given,
    in_replicas,
    keys_times,
    losses_reported,
    moved,
    norm_of,
    returned,
    runs_on,
    scaled_by,
    scaled_gradients,
    see_weights,
    slots_updated,
    stops_late,
    summed,
    updated,
    with_masks,
    with_state,
    with_training,
)
from parity.twins.oracle.optimizers import clip_by_global_norm, in_precision
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, learning_rate
from parity.twins.spec.step_arrays import dropout_masks

_GATES = {"lstm": "ifgo", "gru": "rzc"}
_DECODER = "forward/[da]*"  # with input feeding, what is fed reaches the bottom layer
_EPSILONS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_BETAS = {"beta1": (0.5, 0.8, 0.95, 0.99), "beta2": (0.9, 0.95, 0.98, 0.99, 0.9999)}


def suspects(case: WrongStep) -> Iterator[Suspect]:
    """Yield every mistake that may have been made in a step."""
    yield from chain.from_iterable(rows(case) for rows in _RUNGS)


def _dropout(case: WrongStep) -> Iterator[Suspect]:
    masks, keep = case.inputs.masks, case.spec.model.keep
    if not masks:
        return
    row = partial(suspect, starts=FORWARD)

    def drawn(step: int) -> Replacements:
        return with_masks(lambda masks: _like(masks, dropout_masks(case.spec, step, batch)))

    def inverted(mask: np.ndarray) -> np.ndarray:
        kept: np.ndarray = (mask == 0).astype(mask.dtype) / mask.dtype.type(1 - keep)
        return kept

    def held(mask: np.ndarray) -> np.ndarray:
        return np.repeat(mask[:, :1], mask.shape[1], axis=1) if mask.ndim == 3 else mask

    batch = case.inputs.batch
    each = _each
    yield row("no dropout", with_masks(lambda masks: {}))
    yield row(
        "dropout that does not scale what it keeps",
        with_masks(each(lambda m: m * m.dtype.type(keep))),
        faults="mask-not-scaled",
    )
    yield row(
        "dropout that keeps what it should drop",
        with_masks(each(inverted)),
        faults="keep-is-drop",
    )
    yield row("one dropout mask for all time steps, that of the first", with_masks(each(held)))
    for place in masks:
        top = place == list(masks)[-1]
        yield row(
            f"no dropout at {place}",
            with_masks(partial(_without, place)),
            faults="no-dropout-at-the-top" if top else "sent-before-dropout",
        )
        for other in masks:
            if place != other and masks[place].shape == masks[other].shape:
                yield row(
                    f"the mask of {other} at {place}",
                    with_masks(partial(lambda m, a, b: {**m, a: m[b]}, a=place, b=other)),
                    faults="mask-of-other-layer",
                )
    update = RecordedUpdate.of(case.recorded)
    if update is not None and update.first_row:
        yield row(
            "the dropout masks of the first worker's rows",
            drawn(case.step),
            faults="mask-of-first-replica",
            by_row=False,
        )
    steps = {"step 0": 0, "the step before": case.step - 1, "the step after": case.step + 1}
    for words, step in steps.items():
        if step >= 0 and step != case.step:
            yield row(
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


def _inputs(case: WrongStep) -> Iterator[Suspect]:
    row = partial(suspect, starts=FORWARD, by_row=False)
    lengths = NETWORKS[case.spec.network].lengths.values()
    parts = [name for name in case.inputs.batch if name not in lengths]
    parts += ["dropout masks"] * bool(case.inputs.masks)
    parts += ["recurrent state"] * case.carries
    for part in parts if len(case.sizes) > 1 else ():
        yield row(
            f"every replica reading the first one's {part}",
            in_replicas(partial(_of_first, part)),
            faults={"dropout masks": "mask-of-first-replica", "tokens": "same-rows"}.get(
                part, ""
            ),
        )
    if "targets" in case.inputs.batch:
        for words, by, faults in (("late", -1, "targets-late"), ("early", 1, "")):
            yield row(
                f"targets one step too {words}",
                in_replicas(_batch(partial(_rolled, by))),
                where="forward/token_loss",
                faults=faults,
            )
        yield row(
            "the tokens read as the targets",
            given(_batch(lambda b: b["tokens"])),
            where="forward/token_loss",
            faults="block-reads-tokens-as-targets",
        )


def _batch(targets: Callable[[Any], np.ndarray]) -> Callable[[Share], Share]:
    return lambda share: replace(share, batch={**share.batch, "targets": targets(share.batch)})


def _rolled(by: int, batch: Tensors) -> np.ndarray:
    return np.roll(batch["targets"], by, axis=1)


def _of_first(part: str, share: Share) -> Share:
    """Return a replica's share with a part of the first one's, cut or padded to its own."""
    field = {"dropout masks": "masks", "recurrent state": "state"}.get(part, "batch")
    mine, its = getattr(share, field), getattr(share.shares[0], field)
    names = [part] if field == "batch" else list(mine)
    taken = {name: _fitted(its[name], mine[name]) for name in names}
    return replace(share, **{field: {**mine, **taken}})  # type: ignore[arg-type]


def _fitted(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return as many rows and steps of an array as another has, padded with zeros."""
    array = array[tuple(slice(size) for size in like.shape)]
    return np.pad(array, [(0, b - a) for a, b in zip(array.shape, like.shape, strict=True)])


def _states(case: WrongStep) -> Iterator[Suspect]:
    if not case.carries:
        return
    row, left = partial(suspect, starts=FORWARD), case.left
    if case.inputs.carry:
        yield row(
            "the state not carried from the batch before",
            with_state(_each(np.zeros_like)),
            faults="state-not-carried",
        )
    elif left is not None and len(next(iter(left.values()))) == case.inputs.rows:
        yield row(
            "the state carried although the batch starts anew",
            with_state(lambda state: _like(state, left)),
            faults="state-not-reset",
            by_row=False,
        )
    if set(case.state) == {"h", "c"}:
        yield row(
            "h and c read as each other",
            with_state(lambda state: {"h": state["c"], "c": state["h"]}),
        )
        yield row(
            "h and c passed on as each other",
            returned(lambda a, gradients: (a | {"h": a["c"], "c": a["h"]}, gradients)),
            where="forward/[ch]",
            faults="state-swapped",
        )


def _weights(case: WrongStep) -> Iterator[Suspect]:
    row, root = partial(suspect, starts=FORWARD), float(np.sqrt(case.spec.model.embedding_size))
    for name in case.parameters("kernel"):
        shape = case.snapshot[f"weight/{name}"].shape
        if len(shape) == 2 and shape[0] == shape[1]:
            yield row(
                f"{name} transposed",
                see_weights([name], np.transpose, np.transpose),
                faults="square-kernel-transposed" * name.startswith("attention"),
            )

    def tables(factor: float) -> Replacements:
        names = case.parameters("/table")
        return see_weights(names, lambda w: w * factor, lambda d: d * factor)

    at_tables: dict[str, Any] = {"where": "forward/*embedded", "faults": "embedding-root"}
    yield row("embeddings multiplied by the root of their width", tables(root), **at_tables)
    yield solved("embeddings multiplied by {}", FORWARD, tables, (1.0, 2.0), **at_tables)
    for name in case.parameters():
        constant = float(name == "attention/scale")
        yield row(
            f"{name} left out",
            see_weights([name], partial(np.full_like, fill_value=constant), np.zeros_like),
            faults="attention-scale-left-out" * bool(constant),
        )
        for dtype in NARROWER[case.spec.training.dtype]:
            yield row(
                f"{name} rounded to {dtype}",
                see_weights([name], partial(rounded, dtype=dtype), lambda d: d),
                faults="half-precision-weight" * (dtype == "float16"),
            )


def _cells(case: WrongStep) -> Iterator[Suspect]:
    cell = case.cell
    row, gates = partial(suspect, starts=FORWARD), _GATES[cell]
    biases = [f"{layer}/bias" for layer in case.layers()]

    def added(which: str, constant: float) -> Replacements:
        by_gate = np.array([constant if gate in which else 0.0 for gate in gates])

        def see(bias: np.ndarray) -> np.ndarray:
            more = np.repeat(by_gate.astype(bias.dtype), len(bias) // len(gates))
            found: np.ndarray = bias + more
            return found

        return see_weights(biases, see, lambda d: d)

    if cell == "lstm":
        yield row("1 added to the forget gate", added("f", 1.0), faults="forget-bias")
    else:
        yield row("1 added to the gates r and z", added("rz", 1.0), faults="gru-gate-bias")
    yield row(
        "each layer's bias added twice",
        *(
            see_weights(biases, lambda b: 2 * b, back)
            for back in (lambda d: 2 * d, lambda d: d)
        ),
        faults="bias-twice",
    )
    for gate in gates:
        yield solved(
            f"{{}} added to gate {gate}",
            FORWARD,
            partial(added, gate),
            (0.0, 1.0),
            name=f"a constant added to gate {gate}",
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
        yield row(
            name, *(gates_in_order(cell, order, derived=each) for each in derived), faults=fault
        )


def _ends(case: WrongStep) -> Iterator[Suspect]:
    row = partial(suspect, starts=FORWARD, by_row=False)
    yield row(
        "a state that goes on changing past the end of each row",
        runs_on(output=False),
        runs_on(output=True),
        faults="state-runs-on",
    )
    yield row(
        "recurrent layers that stop one step before the end",
        stops_late(-1),
        faults="length-short",
    )
    yield row("recurrent layers that stop one step after the end", stops_late(1))


def _attention(case: WrongStep) -> Iterator[Suspect]:
    if "attention/weights" not in case.activations:
        return
    row = partial(suspect, starts=FORWARD, where=_DECODER)
    root = float(np.sqrt(case.spec.model.hidden_size))

    def all_but_first(real: np.ndarray) -> np.ndarray:
        shown = real.copy()
        shown[:, 0] &= real.sum(axis=1) == 1
        return shown

    def all_but_last(real: np.ndarray) -> np.ndarray:
        shorter = first_steps(real, -1)
        return np.where(shorter[:, :1], shorter, real)

    for words, look, faults in (
        ("also looks at padding", np.ones_like, "attention-not-masked"),
        ("leaves out the last word", all_but_last, "attention-mask-short"),
        ("looks one word too far", lambda real: first_steps(real, 1), ""),
        ("leaves out the first word", all_but_first, ""),
    ):
        yield row(f"attention that {words}", attention_over(look), faults=faults, by_row=False)
    yield row(
        "scores divided by the root of the width", keys_times(1 / root), faults="attention-root"
    )
    yield solved(
        "scores multiplied by {}",
        FORWARD,
        keys_times,
        (1.0, 1.1),
        where=_DECODER,
        faults="attention-root",
    )
    zeros = np.zeros_like
    yield row(
        "a decoder that starts from zeros",
        decoder_starts(lambda states: [tuple(map(zeros, each)) for each in states]),
        faults="decoder-starts-from-zero",
    )
    yield row(
        "the decoder's layers starting from the encoder's in the other order",
        decoder_starts(lambda states: states[::-1]),
        faults="decoder-starts-upside-down",
    )
    yield row(
        "a decoder that starts from the encoder's h alone",
        decoder_starts(lambda states: [(h, *map(zeros, c)) for h, *c in states]),
    )


def _loss(case: WrongStep) -> Iterator[Suspect]:
    row, inputs, count = partial(suspect, starts=LOSS), case.inputs, len(case.sizes)
    true, tokens, nothing = inputs.loss_divisor, _tokens(case), float("inf")
    counts = {
        "all positions, padding included": inputs.positions,
        "the rows": inputs.rows,
        "the real tokens": inputs.num_tokens,
        "the tokens without each row's last": inputs.num_tokens - inputs.rows,
        "the tokens and one more in each row": inputs.num_tokens + inputs.rows,
        "nothing": 1,
        "the steps": inputs.batch["targets"].shape[1],
        "the source's tokens": int(inputs.batch.get("source_lengths", np.zeros(1)).sum()),
        "its divisor times the replicas": true * count,
        "its divisor over the replicas": true / count,
    }
    faults = {
        "all positions, padding included": "pads-counted",
        "the rows": "per-sentence",
        "the tokens without each row's last": "end-not-counted",
    }
    for words, number in counts.items():
        if number > 0 and number != true:
            yield row(
                f"divided by {words}",
                divided(case, [number] * count),
                sentence=f"the loss divided by {words} ({number:g}, not {true})",
                faults=faults.get(words, ""),
            )
    own = [max(1, each) for each in tokens]
    each_own = "each replica's loss divided by its own tokens"
    lists: dict[str, tuple[list[float], str]] = {
        "no loss and no gradient of the batch": ([nothing] * count, "partial-batch-untrained")
    }
    if count > 1:
        lists |= {
            each_own: ([*own], "process-loss-per-own-tokens"),
            f"{each_own} and by the number of replicas": (
                [each * count for each in own],
                "mean-of-means",
            ),
            "the loss of all replicas but the first divided by their own tokens": (
                [true, *own[1:]],
                "scale-on-first-replica",
            ),
        }
        for r in range(count):
            lists[f"no loss and no gradient of replica {r}"] = (
                [nothing if r == each else true for each in range(count)],
                "last-replica-left-out" * (r == 2),
            )
        first = np.arange(count) == 0
        for words, report in (
            ("for all", lambda losses: np.repeat(losses[:1], len(losses))),
            (", and none of the others", lambda losses: losses * first),
        ):
            yield row(
                f"the first replica's loss reported {words}".replace(" ,", ","),
                losses_reported(report),
                faults="loss-of-first-replica",
            )
    for words, (divisors, of_faults) in lists.items():
        yield row(words, divided(case, divisors), faults=of_faults)
    yield solved(
        f"the loss divided by {{}}, not by {true}",
        LOSS,
        lambda number: divided(case, [number] * count),
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
    row, names, count = partial(suspect, starts=GRADIENT), case.parameters(), len(case.sizes)
    for name in names:
        yield row(
            f"no gradient of {name}", scaled_gradients([name], 0), where=f"gradient/{name}"
        )
    wrong = [name for name in names if f"gradient/{name}" in case.wrong]
    if 0 < len(wrong) < len(names):
        listed, few = ", ".join(wrong), partial(scaled_gradients, wrong)
        if len(wrong) > 1:  # there is a row for each that is zero alone
            yield row(f"no gradient of {listed}", few(0), faults="nothing-sent-back")
        yield row(f"the gradient of {listed} doubled", few(2), faults="sent-back-twice")
        yield solved(f"the gradient of {listed} multiplied by {{}}", GRADIENT, few, (1.0, 0.5))
    factor = partial(scaled_gradients, names)
    for number, words in case.counts().items():
        for how, by, faults in (
            (
                "divided",
                1 / number,
                "gradient-averaged workers-averaged micro-batches-averaged",
            ),
            ("multiplied", number, "gradient-times-replicas"),
        ):
            yield row(
                f"the gradient {how} by {number}, the number of {words}",
                factor(by),
                faults=faults,
            )
    yield solved(
        "the gradient multiplied by {}",
        GRADIENT,
        factor,
        (1.0, 0.5),
        name="the gradient multiplied by a factor",
        faults="workers-averaged micro-batches-averaged",
    )
    for dtype in NARROWER[case.spec.training.dtype]:
        near = _each(partial(rounded, dtype=dtype))
        yield row(
            f"the gradient rounded to {dtype}",
            returned(partial(lambda a, g, near: (a, near(g)), near=near)),
        )
        if count > 1:
            yield row(
                f"the replicas' gradients rounded to {dtype} before the sum",
                _combined(partial(lambda parts, near: summed([*map(near, parts)]), near=near)),
                faults="process-half-precision" * (dtype == "float16"),
            )
    if count > 1:
        yield from _replicas(case)


def _combined(combine: Callable[[list[Arrays]], Arrays]) -> Replacements:
    return in_replicas(combine=combine)


def _replicas(case: WrongStep) -> Iterator[Suspect]:
    """Yield the mistakes in how the replicas' gradients become one.

    A replica's part is the gradient of its mean loss, weighted by its share of the tokens.
    """
    row, count = partial(suspect, starts=GRADIENT), len(case.sizes)

    def one(parts: list[Arrays], r: int) -> Arrays:
        return parts[min(r, len(parts) - 1)]

    def but_one(parts: list[Arrays], r: int, name: str) -> Arrays:
        return summed(parts) | {name: one(parts, r)[name]}

    for r in range(count):
        yield row(
            f"the gradient of replica {r} alone",
            _combined(partial(one, r=r)),
            faults="nothing-reduced" * (not r),
            apart=True,
        )
        yield row(
            f"the gradient of replica {r} left out of the sum",
            _combined(partial(lambda p, r: summed(p[:r] + p[r + 1 :] or p), r=r)),
            faults="last-replica-left-out" * (r == 2),
        )
        for name in case.parameters():
            yield row(
                f"the gradient of {name} of replica {r} alone",
                _combined(partial(but_one, r=r, name=name)),
                faults="one-gradient-not-reduced" * (not r),
                where=f"gradient/{name}",
                apart=True,
            )
    yield row(
        "the gradient of replica 0 added to the sum once more",
        _combined(lambda parts: summed([*parts, parts[0]])),
        faults="process-own-gradient-twice",
        apart=True,
    )
    limit, tokens = case.spec.training.clip_norm, np.array(_tokens(case))
    for number, words in ((limit, "the limit"), (limit / count, "its share of the limit")):
        yield row(
            f"each replica's gradient clipped to {words} ({number:g}) before the sum",
            _combined(partial(lambda parts, n: summed([_clip(p, n) for p in parts]), n=number)),
            faults="clipped-per-replica",
        )
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
        yield row(
            f"the replicas' gradients {words}",
            _combined(partial(_weighted, factors=own / shares)),
            faults=fault,
        )
    yield row(
        f"the gradient of each replica's mean loss clipped to the limit ({limit:g})",
        _combined(
            lambda parts: _weighted(
                [_clip(mean, limit) for mean in _scaled(parts, 1 / shares)], shares
            )
        ),
        faults="clipped-per-replica",
    )


def _clip(gradients: Arrays, limit: float) -> Arrays:
    return original(clip_by_global_norm)(gradients, limit)[0]


def _scaled(parts: list[Arrays], factors: np.ndarray) -> list[Arrays]:
    return [{n: f * g for n, g in part.items()} for f, part in zip(factors, parts, strict=True)]


def _weighted(parts: list[Arrays], factors: np.ndarray) -> Arrays:
    return summed(_scaled(parts, factors))


def _clipping(case: WrongStep) -> Iterator[Suspect]:
    limit = case.spec.training.clip_norm

    def row(name: str, *clips: Any, **values: Any) -> Suspect:
        return suspect(name, *map(clipped, clips), starts=CLIPPING, **values)

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
    for number, words in case.counts().items():
        for how, by in (("divided", 1 / number), ("multiplied", float(number))):
            yield row(
                f"the limit {how} by {number}, the number of {words} ({limit * by:g})",
                scaled_by(factor=by),
            )
    for dtype in NARROWER[case.spec.training.dtype]:
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
        CLIPPING,
        by_value,
        (_largest_clipped(case), limit),
        faults="clipped-by-value",
        name="each element of the gradient clipped to a limit",
    )
    yield solved(
        f"clipping to {{}} in place of {limit:g}",
        CLIPPING,
        lambda number: clipped(scaled_by(factor=number / limit)),
        (limit, limit / 2),
        right=limit,
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
                f"a learning rate that {words}",
                Change({}, rate=rates[-1]),
                starts=SCHEDULE,
                faults=fault,
            )


def _updates(case: WrongStep) -> Iterator[Suspect]:
    row, training, true = partial(suspect, starts=UPDATE), case.spec.training, case.rate
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
            yield row(
                f"an update by the learning rate {words}",
                by_rate(partial(lambda _, rate: rate, rate=rate)),
                sentence=f"an update by the learning rate {words} "
                f"({telling(rate, true)}, not {true:g})",
                faults=faults,
            )
    yield solved(
        "an update by {} times the learning rate",
        UPDATE,
        lambda factor: by_rate(lambda rate: rate * factor),
        (1.0, 0.5),
        right=1.0,
        name="an update by a multiple of the learning rate",
    )

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
            starts,
            decay,
            (0.0, 1e-3),
            name=f"a weight decay {words}",
            faults="weight-decay",
        )
    yield row("no update of the weights", moved(0), faults="lost-update")
    for number in sorted({2, *case.counts()}):
        yield row(
            f"an update of the weights {number} times as large",
            moved(number),
            faults="update-applied-twice" * (number == 2)
            + " mirrored-updated-per-replica mirrored-rate-times-replicas"
            * (number == len(case.sizes)),
        )
    wrong = [name.removeprefix("weight/") for name in case.wrong if name.startswith("weight/")]
    if 0 < len(wrong) < len(case.parameters()):
        listed = ", ".join(wrong)
        yield row(
            f"{listed} left out of the update", moved(0, wrong), faults="one-weight-frozen"
        )
        yield row(f"the update of {listed} doubled", moved(2, wrong), faults="two-biases")
        yield row(f"the update of {listed} in the other direction", moved(-1, wrong))

    def unclipped(update: Any, *rest: Any) -> Arrays:
        spec, snapshot, slots, gradients, rate = rest
        own = {n: np.asarray(case.recorded[f"gradient/{n}"], np.float64) for n in gradients}
        return dict(update(spec, snapshot, slots, own, rate))

    if training.optimizer == "sgd":  # Adam's reads its moments alone
        yield row(
            "an update by the gradient before clipping",
            updated(unclipped),
            faults="worker-does-not-clip",
        )
    if case.read is not None:
        read = {n: np.asarray(array, np.float64) for n, array in case.read.items()}
        yield row(
            "an update of the weights that the worker had read, without the updates since",
            updated(
                lambda update, spec, snapshot, *rest: dict(
                    update(spec, {**snapshot, **read}, *rest)
                )
            ),
            faults="update-of-own-copy",
        )


def _adam(case: WrongStep) -> Iterator[Suspect]:
    training, count = case.spec.training, len(case.sizes)
    if training.optimizer != "adam":
        return
    row = partial(suspect, starts=UPDATE)
    for epsilon in sorted({training.epsilon, *_EPSILONS[1:]}):
        own = epsilon == training.epsilon
        if not own:
            yield row(
                f"an epsilon of {epsilon:g}, not {training.epsilon:g}",
                with_training(epsilon=epsilon),
                faults="epsilon-of-keras" * (epsilon == 1e-7),
            )
        yield row(
            f"an epsilon{'' if own else f' of {epsilon:g}'} added before the bias correction",
            updated(partial(_epsilon_inside, epsilon)),
            faults="epsilon-inside" * own,
        )
    for name, others in _BETAS.items():
        for value in others:
            if value != getattr(training, name):
                yield row(
                    f"a {name} of {value:g}",
                    with_training(**{name: value}),
                    starts=OPTIMIZER,
                    faults="beta2" * ((name, value) == ("beta2", 0.99)),
                )
    for dtype in NARROWER[training.dtype]:
        betas = {n: rounded_number(getattr(training, n), dtype) for n in _BETAS}
        if all(0 < beta < 1 for beta in betas.values()):
            # a half-precision epsilon is zero, which is no constant of a run
            epsilon = rounded_number(training.epsilon, dtype) or training.epsilon
            yield row(
                f"Adam's constants rounded to {dtype}",
                *(with_training(**betas, epsilon=e) for e in (epsilon, training.epsilon)),
                starts=OPTIMIZER,
                faults="constants-in-float32" * (dtype == "float32"),
            )

    def powers(change: Callable[[Any, Any, float], Any]) -> Replacements:
        def after(spec: Spec, before: Tensors, slots: Arrays) -> Arrays:
            keys = {f"optimizer/{name}_power": getattr(spec.training, name) for name in _BETAS}
            own = dict(zip(keys, in_precision(spec, *keys.values()), strict=True))
            return slots | {n: change(before[n], slots[n], beta) for n, beta in own.items()}

        return slots_updated(after)

    yield row(
        "the powers of beta1 and beta2 not updated",
        powers(lambda before, *_: before),
        starts=OPTIMIZER,
        faults="powers-stand-still steps-of-first-worker",
    )
    if count > 1:
        yield row(
            "the powers of beta1 and beta2 updated once for each replica",
            powers(lambda _, power, beta: power * beta ** (count - 1)),
            starts=OPTIMIZER,
            faults="mirrored-steps-per-replica",
        )
    for names in (("beta1",), ("beta2",), ("beta1", "beta2")):
        for words, change, faults in (
            ("one step too late", lambda p, b: p * b, "powers-late"),
            ("one step too early", lambda p, b: p / b, ""),
            ("left out", lambda p, b: p * 0, "no-bias-correction"),
        ):
            yield row(
                f"the bias correction of {' and '.join(names)} {words}",
                updated(partial(_corrected, names, change)),
                faults=faults,
            )

    def nesterov(update: Any, *rest: Any) -> Arrays:
        spec, snapshot, slots, gradients, rate = rest
        (beta1,) = in_precision(spec, spec.training.beta1)
        ahead = {
            f"optimizer/{n}/m": beta1 * slots[f"optimizer/{n}/m"] + (1 - beta1) * g
            for n, g in gradients.items()
        }
        return dict(update(spec, snapshot, {**slots, **ahead}, gradients, rate))

    yield row("Nesterov's momentum in Adam", updated(nesterov))


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


# in the order of computation, but for the orders of gates, which are the most
_RUNGS = (
    _dropout,
    _inputs,
    _states,
    _weights,
    _ends,
    _attention,
    _loss,
    _gradients,
    _clipping,
    _schedules,
    _updates,
    _adam,
    _cells,
)
