"""Ways to change what the oracle's functions are given, and what comes back from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from parity.twins.compare.causes.wrong_step import Arrays, Replacements, Tensors
from parity.twins.oracle.attention import Memory, memory_backward, memory_forward
from parity.twins.oracle.decoder import decoder_start, decoder_start_backward
from parity.twins.oracle.layers import look_up
from parity.twins.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.twins.oracle.recurrent import (
    CELLS,
    State,
    masked_step,
    masked_step_backward,
)
from parity.twins.oracle.training import Share, replica_losses, run_network
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Axes
from parity.twins.spec.replaceable import original
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import axis_sizes, shape_of, zero_padding


def given(change: Callable[[Share], Share]) -> Replacements:
    """Return replacements that change what the network is given."""

    @wraps(run_network)
    def run(share: Share) -> tuple[Arrays, Arrays]:
        return original(run_network)(change(share))

    return {run_network: run}


def returned(change: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]) -> Replacements:
    """Return replacements that change the activations and gradients of the network."""

    @wraps(run_network)
    def run(share: Share) -> tuple[Arrays, Arrays]:
        return change(*original(run_network)(share))

    return {run_network: run}


def with_masks(change: Callable[[Tensors], Tensors]) -> Replacements:
    """Return replacements in which dropout acts by changed masks."""
    return given(lambda share: replace(share, masks=change(share.masks)))


def with_targets(
    targets: Callable[[Mapping[str, np.ndarray]], np.ndarray],
) -> Callable[[Share], Share]:
    """Return a change of what the network is given: other targets, made of the batch."""
    return lambda share: replace(share, batch={**share.batch, "targets": targets(share.batch)})


def with_state(change: Callable[[Tensors], Tensors]) -> Replacements:
    """Return replacements in which the network starts from a changed state."""
    return given(lambda share: replace(share, state=change(share.state)))


def see_weights(
    names: Sequence[str],
    see: Callable[[np.ndarray], np.ndarray],
    back: Callable[[np.ndarray], np.ndarray],
) -> Replacements:
    """Return replacements in which the network sees some weights changed.

    Args:
      names: the parameters.
      see, back: return each weight as it is seen, and its gradient.
    """

    @wraps(run_network)
    def run(share: Share) -> tuple[Arrays, Arrays]:
        seen = {**share.weights, **{name: see(share.weights[name]) for name in names}}
        activations, gradients = original(run_network)(replace(share, weights=seen))
        return activations, gradients | {name: back(gradients[name]) for name in names}

    return {run_network: run}


def scaled_gradients(names: Sequence[str], factor: float) -> Replacements:
    """Return replacements in which the gradients of some parameters are scaled."""
    return returned(lambda a, g: (a, g | {name: g[name] * factor for name in names}))


Combine = Callable[[list[Arrays]], Arrays]

# parameter name -> gradient, and the limit, to what clipping returns
Clip = Callable[[Arrays, float], tuple[Arrays, np.float64]]


def summed(gradients: list[Arrays]) -> Arrays:
    """Return the sum of the replicas' gradients."""
    return {name: sum(each[name] for each in gradients) for name in gradients[0]}  # type: ignore[misc]


def in_replicas(
    change: Callable[[Share], Share] = lambda share: share,
    combine: Combine = summed,
) -> Replacements:
    """Return replacements in which each replica runs on its own rows, as the sides' do.

    A replica's arrays are cut to the longest of its rows, and what it records is zero past the
    end of each row.

    Args:
      change: changes what a replica is given.
      combine: returns the gradient, given those of all replicas.
    """

    @wraps(run_network)
    def run(whole: Share) -> tuple[Arrays, Arrays]:
        found = [original(run_network)(change(share)) for share in split(whole)]
        activations = joined(whole.spec, [a for a, _ in found], whole.batch)
        return activations, combine([g for _, g in found])

    return {run_network: run, look_up: padding_looked_up}


@wraps(look_up)
def padding_looked_up(table: np.ndarray, tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Look up padding as well, as the sides do; it matters where a mistake reads it."""
    found: np.ndarray = table[tokens]
    return found


def split(whole: Share) -> list[Share]:
    """Return the share of each replica that has rows, cut to the longest of its rows."""
    network = NETWORKS[whole.spec.network]
    mask_axes = network.masks(whole.spec.model)
    shares = []
    for replica, (start, stop) in enumerate(pairwise(np.cumsum([0, *whole.sizes]))):
        if start == stop:
            continue
        longest = {
            axis: max(1, int(whole.batch[lengths][start:stop].max()))
            for axis, lengths in network.lengths.items()
        }

        def cut(array: np.ndarray, axes: Axes, rows: slice, most: Mapping[str, int]) -> Any:
            array = array[rows]
            if len(axes) == 1 or isinstance(axes[1], int):
                return array
            return array[:, : most[str(axes[1])]]

        rows = slice(int(start), int(stop))
        shares.append(
            replace(
                whole,
                batch={
                    n: cut(a, network.batch[n], rows, longest) for n, a in whole.batch.items()
                },
                masks={n: cut(a, mask_axes[n], rows, longest) for n, a in whole.masks.items()},
                state={n: a[rows] for n, a in whole.state.items()},
                replica=replica,
            )
        )
    return shares


def joined(spec: Spec, parts: Sequence[Arrays], batch: Mapping[str, np.ndarray]) -> Arrays:
    """Join the replicas' activations, each padded with zeros."""
    axes, sizes = NETWORKS[spec.network].activations(spec.model), axis_sizes(spec, batch)
    found = {}
    for name in parts[0]:
        whole = np.zeros(shape_of(axes[name], sizes), parts[0][name].dtype)
        start = 0
        for array in (part[name] for part in parts):
            rows = slice(start, start + len(array))
            whole[(rows, *map(slice, array.shape[1:]))] = array
            start += len(array)
        found[name] = zero_padding(spec, axes[name], whole, batch)
    return found


def divided(divisors: Sequence[float], sums: np.ndarray | None = None) -> Replacements:
    """Return replacements in which the loss of each replica is divided by a number of its own.

    Args:
      divisors: one for each replica.
      sums: what is divided, in place of the sum of each replica's losses.
    """

    @wraps(replica_losses)
    def losses(token_loss: np.ndarray, _: float, sizes: Sequence[int]) -> np.ndarray:
        per_replica = sums
        if per_replica is None:
            one = token_loss.dtype.type(1)
            per_replica = original(replica_losses)(token_loss, one, sizes)
        found: np.ndarray = per_replica / np.asarray(divisors, token_loss.dtype)
        return found

    if len(set(divisors)) == 1:
        run = given(lambda share: replace(share, divisor=divisors[0]))
    else:
        run = in_replicas(lambda share: replace(share, divisor=divisors[share.replica]))
    return {**run, replica_losses: losses}


def clipped(clip: Clip) -> Replacements:
    """Return replacements of clipping."""

    @wraps(clip_by_global_norm)
    def by(gradients: Arrays, clip_norm: float) -> tuple[Arrays, np.float64]:
        return clip(gradients, clip_norm)

    return {clip_by_global_norm: by}


def norm_of(gradients: Tensors) -> np.float64:
    """Return the norm of all gradients together."""
    total = sum(float(np.sum(np.square(gradient))) for gradient in gradients.values())
    return np.float64(np.sqrt(total))


def scaled_by(
    change: Callable[[np.float64], float] = lambda norm: norm,
    factor: float = 1.0,
    of: Callable[[Arrays], Arrays] | None = None,
) -> Clip:
    """Return clipping by another norm, or to another limit.

    Args:
      change: changes the norm that the gradients are scaled by, but not the one recorded.
      factor: what the limit is multiplied by.
      of: returns the arrays whose norm is taken, and recorded.
    """

    def clip(gradients: Arrays, limit: float) -> tuple[Arrays, np.float64]:
        norm, limit = norm_of(of(gradients) if of else gradients), limit * factor
        scale = limit / np.maximum(limit, change(norm))
        return {name: gradient * scale for name, gradient in gradients.items()}, norm

    return clip


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


def moved(factor: float, names: Sequence[str] | None = None) -> Replacements:
    """Return replacements in which weights move by a multiple of their update.

    Args:
      names: the parameters that do; None for all.
    """

    def change(update: Any, spec: Spec, snapshot: Tensors, *rest: Any) -> Arrays:
        after = update(spec, snapshot, *rest)
        for name in after if names is None else [f"weight/{each}" for each in names]:
            after[name] = snapshot[name] + factor * (after[name] - snapshot[name])
        return dict(after)

    return updated(change)


def with_training(**values: Any) -> Replacements:
    """Return replacements in which both parts of the update read other constants."""

    @wraps(update_slots)
    def slots(spec: Spec, snapshot: Tensors, gradients: Tensors) -> Arrays:
        return original(update_slots)(spec.replace(**values), snapshot, gradients)

    return {
        **updated(lambda update, spec, *rest: update(spec.replace(**values), *rest)),
        update_slots: slots,
    }


def in_order(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return the blocks of the last axis in another order."""
    blocks = np.split(array, len(order), axis=-1)
    return np.concatenate([blocks[gate] for gate in order], axis=-1)


def gates_in_order(cell: str, order: Sequence[int], *, derived: bool = True) -> Replacements:
    """Return replacements in which the cell of every layer takes its gates in another order.

    Args:
      derived: whether the gradient follows; otherwise it is taken as if nothing had moved.
    """
    step, backward = CELLS[cell]
    back = np.argsort(order).tolist()

    @wraps(step)
    def moved(a: np.ndarray, state: Any, u: np.ndarray) -> Any:
        return original(step)(in_order(a, order), state, in_order(u, order))

    @wraps(backward)
    def moved_backward(d_state: Any, saved: Any, u: np.ndarray) -> Any:
        d_a, d_u, d_before = original(backward)(d_state, saved, in_order(u, order))
        return in_order(d_a, back), in_order(d_u, back), d_before

    return {step: moved, backward: moved_backward} if derived else {step: moved}


def runs_on(*, output: bool) -> Replacements:
    """Return replacements in which the state goes on changing past the end of each row.

    Args:
      output: whether the next layer reads the layer's output there.
    """

    @wraps(masked_step)
    def step(cell: str, a: np.ndarray, state: State, u: np.ndarray, on: np.ndarray) -> Any:
        new, saved = CELLS[cell][0](a, state, u)
        return new[0] if output else np.where(on, new[0], 0), new, saved

    @wraps(masked_step_backward)
    def backward(
        cell: str,
        d_output: np.ndarray,
        d_state: State,
        saved: Any,
        u: np.ndarray,
        on: np.ndarray,
    ) -> Any:
        d_h, *d_others = d_state
        d_output = d_output if output else np.where(on, d_output, 0)
        return CELLS[cell][1]((d_h + d_output, *d_others), saved, u)

    return {**in_replicas(), masked_step: step, masked_step_backward: backward}


def cut_in_time(places: Sequence[int]) -> Replacements:
    """Return replacements in which no gradient leaves a time step by some of its states.

    Args:
      places: of the states: 0 for h, 1 for an LSTM's c.
    """

    @wraps(masked_step_backward)
    def backward(*given: Any) -> Any:
        d_a, d_u, before = original(masked_step_backward)(*given)
        on = given[-1]
        cut = (np.where(on, 0, d) if k in places else d for k, d in enumerate(before))
        return d_a, d_u, tuple(cut)

    return {masked_step_backward: backward}


def decoder_starts(change: Callable[[list[State]], list[State]]) -> Replacements:
    """Return replacements in which the decoder starts from a changed state of the encoder.

    Args:
      change: is its own backward pass.
    """

    @wraps(decoder_start)
    def start(states: list[State]) -> list[State]:
        return change(states)

    @wraps(decoder_start_backward)
    def backward(d_states: list[State]) -> list[State]:
        return change(d_states)

    return {decoder_start: start, decoder_start_backward: backward}


def attention_over_padding() -> Replacements:
    """Return replacements in which attention takes every step of the source for a real one."""

    @wraps(memory_forward)
    def remember(kind: str, weights: Any, values: Any, real: np.ndarray) -> Any:
        return original(memory_forward)(kind, weights, values, np.ones_like(real))

    return {**in_replicas(), memory_forward: remember}


def keys_times(factor: float) -> Replacements:
    """Return replacements in which attention's scores are multiplied by a factor."""

    @wraps(memory_forward)
    def forward(kind: str, weights: Any, values: np.ndarray, real: np.ndarray) -> Memory:
        memory = original(memory_forward)(kind, weights, values, real)
        return replace(memory, keys=memory.keys * memory.keys.dtype.type(factor))

    @wraps(memory_backward)
    def backward(kind: str, weights: Any, memory: Memory, d_memory: Any, gradients: Any) -> Any:
        d_values, d_keys = d_memory
        d_memory = d_values, d_keys * factor
        return original(memory_backward)(kind, weights, memory, d_memory, gradients)

    return {memory_forward: forward, memory_backward: backward}
