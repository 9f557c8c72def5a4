"""The arrays that one training step reads and returns, for both sides and the oracle alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from parity.base.errors import NumericFailure
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Axes, records_logits
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec

# Activations that exist for real target tokens only: one row per token, time varying slowest.
_REAL_ROWS = ("logits", "token_loss")


Loss = TypeVar("Loss", float, np.ndarray)


@dataclass(frozen=True)
class StepInputs:
    """The global batch of one step; the first axis of every array is the rows to be shared.

    One of several processes holds its own rows alone, padded as in the global batch. What it
    must know of the others is their lengths.

    Attributes:
      batch: name -> int64 array, as parity/twins/spec/networks declares them: `tokens` and
        `targets` [batch, time], `lengths` [batch] with the number of real tokens per row, and
      so on. carry: whether the state continues from the previous step; otherwise it starts at
      zero. masks: place -> dropout mask [batch, time, width] of 0 or 1/keep; empty without
      dropout. loss_per: "token" or "row", what the summed loss is divided by.
      first_row: the place of the first of these rows in the global batch.
      all_lengths: name -> int64 [batch], the lengths of all rows of the global batch, if these
        are only some of them; otherwise empty.
    """

    batch: Mapping[str, np.ndarray]
    carry: bool = False
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)
    loss_per: str = "token"
    first_row: int = 0
    all_lengths: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def lengths(self) -> Mapping[str, np.ndarray]:
        """Return the arrays with the lengths of all rows of the global batch, by name."""
        return self.all_lengths or self.batch

    @property
    def rows(self) -> int:
        """Return the number of rows in the global batch."""
        return len(self.lengths["lengths"])

    @property
    def num_tokens(self) -> int:
        """Return the number of real target tokens in the global batch."""
        return int(self.lengths["lengths"].sum())

    @property
    def loss_divisor(self) -> int:
        """Return what the summed loss is divided by: real target tokens, or rows.

        It is 1 for rows without a real token, whose loss is zero: a single worker of an
        asynchronous training may have such rows.
        """
        return max(self.num_tokens, 1) if self.loss_per == "token" else self.rows

    def per_token(self, loss: Loss) -> Loss:
        """Return losses of this batch, which were divided by `loss_divisor`, per real token."""
        return loss if self.loss_per == "token" else loss * self.rows / max(self.num_tokens, 1)

    @property
    def positions(self) -> int:
        """Return the number of target positions in the global batch, padding included."""
        return self.rows * int(self.batch["targets"].shape[1])


def axis_sizes(spec: Spec, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the size of each named axis of a batch: "batch", "time" and so on."""
    sizes: dict[str, int] = {}
    for name, axes in NETWORKS[spec.network].batch.items():
        sizes |= dict(zip(map(str, axes), batch[name].shape, strict=True))
    return sizes


def _global_sizes(spec: Spec, inputs: StepInputs) -> dict[str, int]:
    """Return the size of each named axis of the global batch."""
    return axis_sizes(spec, inputs.batch) | {"batch": inputs.rows}


def shape_of(axes: Axes, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a tensor, given its axes and the size of each named axis."""
    return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in axes)


def dropout_masks(
    spec: Spec, step: int, batch: Mapping[str, np.ndarray], first_row: int = 0
) -> dict[str, np.ndarray]:
    """Draw the dropout masks of one step.

    The masks are part of the input: they are drawn here, and both sides use the same ones. Kept
    units are scaled by 1/keep ("inverted" dropout). Recurrent connections are never dropped.

    Args:
      spec: the network, its text and its training.
      step: the step.
      batch: the arrays of the global batch, or of some of its rows, padded as there; only their
        shapes matter.
      first_row: the place of the first of these rows in the global batch.

    Returns:
      Place -> mask [batch, time, width] in the run's dtype; empty if `keep` is 1.

    Source: Zaremba et al. 2014, section 3 and figure 2.
    """
    model, dtype = spec.model, np.dtype(spec.training.dtype)
    if model.keep == 1.0:
        return {}
    masks, sizes = {}, axis_sizes(spec, batch)
    for place, (name, axes) in enumerate(NETWORKS[spec.network].masks(model).items()):
        stream = np.random.PCG64([spec.training.seed, step, place])
        shape = shape_of(axes, sizes)
        draw = np.random.Generator(stream)
        # One draw of 64 bits makes two numbers of 32: go past those of the rows before.
        draws, half = divmod(first_row * math.prod(shape[1:]), 2)
        if first_row:
            stream.advance(draws)
            draw.random(half, dtype=np.float32)
        drawn = draw.random(shape, dtype=np.float32)
        masks[name] = (drawn < model.keep).astype(dtype) / dtype.type(model.keep)
    return masks


def step_inputs(spec: Spec, step: int, batch: Any, *, train: bool = True) -> StepInputs:
    """Return the inputs of a step.

    Args:
      spec: the network, its text and its training.
      step: the step's number, from which its dropout masks are drawn.
      batch: an object with the network's arrays and `carry` as attributes; and, if it has only
        some rows of the batch, `first_row` and `all_lengths`.
      train: whether the step trains; an evaluation has no dropout masks, and its loss is per
        token.
    """
    arrays = {name: getattr(batch, name) for name in NETWORKS[spec.network].batch}
    first_row, all_lengths = getattr(batch, "first_row", 0), getattr(batch, "all_lengths", {})
    masks, loss_per = {}, "token"
    if train:
        masks = dropout_masks(spec, step, arrays, first_row)
        loss_per = spec.training.loss_per
    return StepInputs(arrays, batch.carry, masks, loss_per, first_row, all_lengths)


@dataclass(frozen=True)
class StepResult:
    """The result of one training step or of one evaluated batch.

    Losses are divided by `StepInputs.loss_divisor`.

    Attributes:
      losses: each replica's share of the global loss, [replicas]; their sum is the global loss.
      state: name -> recurrent state after the batch, [batch, layers, hidden]. The language
        model passes it on to the next batch; for seq2seq it is the encoder's final state, which
        is only checked for NaN and infinity.
      gradient_norm: the global norm of the summed gradient, before clipping; 0 in evaluation.
      tensors: name in the trace -> every other tensor that a trace records; empty unless the
        step was asked to record.
    """

    losses: np.ndarray
    state: Mapping[str, np.ndarray]
    gradient_norm: float
    tensors: Mapping[str, np.ndarray]

    @property
    def loss(self) -> float:
        """Return the global loss, in nats."""
        return float(self.losses.sum())


def check_finite(result: StepResult, step: int, sizes: list[int], first: int = 0) -> None:
    """Check that the losses and the gradient norm of a step are finite.

    Args:
      result: the result of the step.
      step: the step's number.
      sizes: the number of rows of each replica.
      first: the number of the first of these replicas.

    Raises:
      NumericFailure: if one is not; the message names the step, the replica and the tensor in
        which a NaN or infinity appears first, in the order of computation.
    """
    if np.all(np.isfinite(result.losses)) and math.isfinite(result.gradient_norm):
        return
    replica_of_row = np.repeat(np.arange(first, first + len(sizes)), sizes)
    states = [  # in the order of computation: layer by layer, a cell's c before its h
        (layer, name, array[:, layer])
        for layer in range(max((a.shape[1] for a in result.state.values()), default=0))
        for name, array in sorted(result.state.items())
    ]
    for layer, name, array in states:
        bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
        if bad.size:
            raise NumericFailure(
                f"step {step}, replica {replica_of_row[bad[0]]}: state {name} of layer {layer} "
                f"is not finite; the loss is {result.loss}"
            )
    for replica, loss in enumerate(result.losses, first):
        if not math.isfinite(loss):
            raise NumericFailure(f"step {step}, replica {replica}: loss is {loss}")
    raise NumericFailure(
        f"step {step}, all replicas: norm of the summed gradient is {result.gradient_norm}"
    )


def split_feeds(
    spec: Spec,
    inputs: StepInputs,
    state: Mapping[str, np.ndarray],
    replicas: int,
    micro_batches: int = 1,
) -> list[dict[str, np.ndarray]]:
    """Divide a global batch into one feed per replica, each name -> array with rows first.

    With micro-batches there is one feed for each of them, in the order of `split_rows`; what
    is said of replicas here is then true of micro-batches. One may have no row.

    The rows of a replica are padded only to the longest among them. `scale`, which is 1 / (real
    tokens of the whole batch), or 1 / (its rows), is the same on every replica: each replica's
    loss is then its share of the global mean, whatever the lengths of its rows. It is zero for
    a replica without a real token, which must add nothing, whatever it computes on padding.

    If `inputs` has only some rows of the global batch, the feeds of the other replicas are
    empty: they are those of other processes.

    Args:
      spec: the network, its text and its training.
      inputs: the global batch.
      state: name -> recurrent state before the batch, [batch, layers, hidden].
      replicas: the number of replicas.
      micro_batches: the number of micro-batches of each replica.
    """
    network = NETWORKS[spec.network]
    axes: dict[str, Axes] = dict(network.batch)
    whole, rows = dict(inputs.batch), len(inputs.batch["lengths"])
    for name, array in state.items():
        whole[name], axes[name] = array[inputs.first_row :][:rows], ("batch",)
    mask_axes = network.masks(spec.model)
    for name, array in inputs.masks.items():
        whole[f"mask/{name}"], axes[f"mask/{name}"] = array, mask_axes[name]
    scale = np.array([1 / inputs.loss_divisor], np.dtype(spec.training.dtype))
    bounds = np.cumsum([0, *split_rows(inputs.rows, replicas, micro_batches)])
    feeds = list[dict[str, np.ndarray]]()
    for start, stop in pairwise(bounds - inputs.first_row):
        if start < 0 or stop > rows:
            feeds.append({})
            continue
        longest = {
            axis: int(inputs.batch[lengths][start:stop].max(initial=1))
            for axis, lengths in network.lengths.items()
        }
        feed = {
            name: array[start:stop]
            if len(axes[name]) == 1 or isinstance(axes[name][1], int)
            else array[start:stop, : longest[str(axes[name][1])]]
            for name, array in whole.items()
        }
        has_tokens = inputs.batch["lengths"][start:stop].any()
        feeds.append(feed | {"scale": scale if has_tokens else np.zeros_like(scale)})
    return feeds


class Taps:
    """Records the activations of one replica where one layer hands them to the next.

    Attributes:
      activations: name -> the activation that a layer computed, time first.
    """

    def __init__(self) -> None:
        self.activations: dict[str, Any] = {}

    def __call__(self, name: str, activation: Any) -> Any:
        """Record an activation, and return it.

        Args:
          name: the activation's name.
          activation: [time, batch, ...], or [batch, ...] for a state.
        """
        self.activations[name] = activation
        return activation


def recorded_activations(
    spec: Spec, activations: Mapping[str, Any], inputs: StepInputs
) -> dict[str, Any]:
    """Return the activations that a trace records: all, but the logits only if they are few."""
    declared = NETWORKS[spec.network].activations(spec.model)
    sizes = _global_sizes(spec, inputs)
    return {
        name: activation
        for name, activation in activations.items()
        if name != "logits" or records_logits(math.prod(shape_of(declared[name], sizes)))
    }


def join_activations(
    spec: Spec,
    by_replica: Mapping[str, Sequence[np.ndarray]],
    inputs: StepInputs,
    micro_batches: int = 1,
) -> dict[str, np.ndarray]:
    """Join the replicas' activations as a trace has them, rows first.

    Past the end of a row every activation is set to zero: the values that a network computes on
    padding depend on how far its replica pads the row, and have no effect.

    Args:
      spec: the network, its text and its training.
      by_replica: activation -> one array per replica: [time, rows, ...]; [rows, ...] if it has
        no time axis; [real tokens, ...] for logits and token_loss, where a replica without a
        real token may return a placeholder row. With micro-batches there is one array for
        each of them, in the order of `split_rows`. A side that takes other positions for real
        has another number of those: they are recorded as they are, [all of them, ...].
      inputs: the global batch.
      micro_batches: the number of micro-batches of each replica.
    """
    network, sizes = NETWORKS[spec.network], _global_sizes(spec, inputs)
    declared = network.activations(spec.model)
    joined = {}
    for name, parts in by_replica.items():
        axes = declared[name]
        whole = np.zeros(shape_of(axes, sizes), parts[0].dtype)
        start, replicas = 0, len(parts) // micro_batches
        sizes_of_parts = split_rows(inputs.rows, replicas, micro_batches)
        for part, rows in zip(parts, sizes_of_parts, strict=True):
            target = whole[start : start + rows]
            if name in _REAL_ROWS:
                lengths = inputs.lengths["lengths"][start : start + rows]
                at = np.nonzero(np.arange(target.shape[1])[:, None] < lengths)
                if len(at[0]) not in (0, len(part)):
                    whole = np.concatenate(parts)  # a mismatch of shapes
                    break
                if len(at[0]):
                    target.swapaxes(0, 1)[at] = part
            else:
                time_first = isinstance(axes[1], str)
                part = part.swapaxes(0, 1) if time_first else part
                # zeros where another replica has longer rows
                missing = zip(target.shape, part.shape, strict=True)
                target[...] = np.pad(part, [(0, most - size) for most, size in missing])
            start += rows
        else:
            whole = zero_padding(spec, axes, whole, inputs.lengths)
        joined[f"forward/{name}"] = whole
    return joined


def zero_padding(
    spec: Spec, axes: Axes, array: np.ndarray, lengths: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Set a tensor to zero past the end of each row, on every time axis that it has.

    Args:
      spec: the network, its text and its training.
      axes: the tensor's axes, rows first.
      array: the tensor, which is changed in place.
      lengths: the arrays of the batch with the rows' lengths, by name.
    """
    for place, axis in enumerate(axes):
        name = NETWORKS[spec.network].lengths.get(str(axis))
        if name is not None:
            is_padding = np.arange(array.shape[place]) >= lengths[name][:, None]
            shape = [len(array)] + [1] * (array.ndim - 1)
            shape[place] = array.shape[place]
            np.copyto(array, 0, where=is_padding.reshape(shape))
    return array
