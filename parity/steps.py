"""What one training step reads, as plain arrays: the same for all sides and the oracle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from parity.replicas import split_rows
from parity.spec import Spec


class Batch(Protocol):
    """What the data hands over: a batch of any way of batching."""

    tokens: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray
    carry: bool


@dataclass(frozen=True)
class StepInputs:
    """The global batch of one step; rows come first in every array, so replicas share rows.

    Attributes:
      tokens: int64 [batch, time].
      targets: int64 [batch, time].
      lengths: int64 [batch], real tokens per row, each in 0..time.
      carry: whether the hidden state continues from the step before (else it starts at zero).
      masks: num_layers + 1 arrays [batch, time, width] of 0 or 1/keep; empty: no dropout.
    """

    tokens: np.ndarray
    targets: np.ndarray
    lengths: np.ndarray
    carry: bool
    masks: tuple[np.ndarray, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Return the number of real tokens, by which the loss is divided."""
        return int(self.lengths.sum())


def dropout_masks(spec: Spec, step: int, rows: int, time: int) -> tuple[np.ndarray, ...]:
    """Draw the dropout masks of one step: on the embedding and on each layer's output.

    Masks are data, drawn here for both sides. Kept units are scaled by 1/keep ("inverted"
    dropout). Recurrent connections are never dropped.

    Returns:
      num_layers + 1 arrays [batch, time, width] in the run's dtype; none if keep is 1.

    Source: Zaremba et al. 2014, section 3 and figure 2.
    """
    model, dtype = spec.model, np.dtype(spec.training.dtype)
    if model.keep == 1.0:
        return ()
    widths = [model.embedding_size] + [model.hidden_size] * model.num_layers
    masks = []
    for place, width in enumerate(widths):
        stream = np.random.PCG64([spec.training.seed, step, place])
        drawn = np.random.Generator(stream).random((rows, time, width), dtype=np.float32)
        masks.append((drawn < model.keep).astype(dtype) / dtype.type(model.keep))
    return tuple(masks)


def step_inputs(spec: Spec, step: int, batch: Batch, *, train: bool = True) -> StepInputs:
    """Return the inputs of a step made from a batch; masks are left out in evaluation.

    Args:
      batch: with tokens, targets [batch, time], lengths [batch] and carry.
    """
    rows, time = batch.tokens.shape
    masks = dropout_masks(spec, step, rows, time) if train else ()
    return StepInputs(batch.tokens, batch.targets, batch.lengths, batch.carry, masks)


@dataclass(frozen=True)
class StepResult:
    """What a trainer's step returns.

    Attributes:
      losses: each replica's share of the global loss, [replicas]; their sum is the global loss.
      h, c: LSTM state after the batch, each [batch, layers, hidden].
      gradient_norm: global norm of the aggregated gradient, before clipping; 0 in evaluation.
      tensors: what a trace records beyond that, by the trace's names; empty unless asked for.
    """

    losses: np.ndarray
    h: np.ndarray
    c: np.ndarray
    gradient_norm: float
    tensors: Mapping[str, np.ndarray]

    @property
    def loss(self) -> float:
        """Return the global loss per real token, in nats."""
        return float(self.losses.sum())


def split_feeds(
    spec: Spec, inputs: StepInputs, state: tuple[np.ndarray, np.ndarray], replicas: int
) -> list[dict[str, np.ndarray]]:
    """Share a global batch out: one feed per replica, name -> array, rows first.

    `scale`, one over the real tokens of the whole batch, is the same on every replica: each
    replica's loss is then its share of the global mean, whatever the lengths of its rows.

    Args:
      state: (h, c) before the batch, each [batch, layers, hidden].
    """
    dtype = np.dtype(spec.training.dtype)
    whole = {
        "tokens": inputs.tokens,
        "targets": inputs.targets,
        "lengths": inputs.lengths,
        "h": state[0],
        "c": state[1],
    } | {f"mask_{place}": mask for place, mask in enumerate(inputs.masks)}
    bounds = np.cumsum([0, *split_rows(len(inputs.tokens), replicas)])
    scale = np.array([1 / inputs.num_tokens], dtype)
    return [
        {name: array[start:stop] for name, array in whole.items()} | {"scale": scale}
        for start, stop in pairwise(bounds)
    ]


def join_activations(
    spec: Spec, by_replica: Mapping[str, Sequence[np.ndarray]], time: int
) -> dict[str, np.ndarray]:
    """Put the replicas' activations together as a trace holds them, [batch, time, ...].

    Args:
      by_replica: activation -> an array per replica, [time, rows, ...] or [time * rows, width].
      time: steps of the batch.
    """
    joined = {}
    for name, parts in by_replica.items():
        if name == "logits":
            parts = [part.reshape(time, -1, spec.model.vocabulary_size) for part in parts]
        joined[f"forward/{name}"] = np.swapaxes(np.concatenate(parts, axis=1), 0, 1)
    return joined
