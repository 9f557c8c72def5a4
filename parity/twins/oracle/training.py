"""The training loop of the oracle: what a trainer does in a step, and in an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from parity.twins.oracle.language_model import network_function
from parity.twins.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.twins.spec.initial import zero_state
from parity.twins.spec.replaceable import original, replaceable
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

Arrays = dict[str, np.ndarray]


def as_float64(array: np.ndarray) -> np.ndarray:
    """Return an array in float64."""
    return np.asarray(array, np.float64)


def recorded_weights(recorded: Mapping[str, np.ndarray]) -> Arrays:
    """Return parameter -> float64 array, of the weights in a snapshot or a recorded step."""
    return {
        name.removeprefix("weight/"): as_float64(array)
        for name, array in recorded.items()
        if name.startswith("weight/")
    }


@dataclass(frozen=True)
class Share:
    """What the network is given: a global batch, or the rows of one replica.

    Attributes:
      spec: what is trained.
      weights: parameter name -> array.
      batch, masks, state: as for parity.twins.oracle.language_model.language_model.
      divisor: what the summed loss is divided by.
      sizes: rows per replica. The oracle has no replicas; mistakes that a side makes in its own
        may stand in place of `run_network`.
      replica: the number of the replica; 0 of a global batch.
    """

    spec: Spec
    weights: Mapping[str, np.ndarray]
    batch: Mapping[str, np.ndarray]
    masks: Mapping[str, np.ndarray]
    state: Mapping[str, np.ndarray]
    divisor: float
    sizes: Sequence[int]
    replica: int = 0


@replaceable
def run_network(share: Share) -> tuple[Arrays, Arrays]:
    """Run the spec's network forward and backward; return its activations and gradients."""
    network = network_function(share.spec.network)
    return network(
        *(share.spec.model, share.weights, share.batch, share.masks, share.state),
        share.divisor,
    )


def run_network_by_shards(share: Share) -> tuple[Arrays, Arrays]:
    """Run the network on the whole batch, but average the gradients of its shards alike.

    A replacement of `run_network`; the shards are the rows of each replica. Multi-GPU tutorials
    average the gradients of the replicas' mean losses with equal weights, which is the gradient
    of the global mean loss only while all replicas have as many real tokens. A shard without a
    real token has a gradient of zero, and counts like the others.
    """
    run = original(run_network)
    activations, gradients = run(share)
    averaged = {name: np.zeros_like(gradient) for name, gradient in gradients.items()}
    tokens = int(share.batch["lengths"].sum())
    for start, stop in pairwise(np.cumsum([0, *share.sizes])):
        in_shard = int(share.batch["lengths"][start:stop].sum())
        if not in_shard:
            continue
        rows: dict[str, Any] = {
            part: {name: array[start:stop] for name, array in getattr(share, part).items()}
            for part in ("batch", "masks", "state")
        }
        divisor = len(share.sizes) * in_shard * share.divisor / tokens
        _, gradients = run(replace(share, **rows, divisor=divisor))
        for name, gradient in gradients.items():
            averaged[name] += gradient
    return activations, averaged


@replaceable
def replica_losses(token_loss: np.ndarray, divisor: float, sizes: Sequence[int]) -> np.ndarray:
    """Return each replica's share of the loss, [replicas].

    Args:
      token_loss: [batch, time], zero on padding.
      divisor: what the summed loss is divided by.
      sizes: rows per replica.
    """
    row_loss = token_loss.sum(axis=1) / divisor
    bounds = np.cumsum([0, *sizes])
    return np.array([row_loss[a:b].sum() for a, b in pairwise(bounds)])


class Oracle:
    """The training of a network, step by step, as the frameworks' trainers do it.

    Attributes:
      snapshot: weights and optimiser state before the next step, float64.
      state: before the next step, name -> array, or None at the start of a text.
    """

    def __init__(self, spec: Spec, snapshot: Mapping[str, np.ndarray]):
        """Start from a snapshot (in any precision) and from the start of the text."""
        self.spec = spec
        self.snapshot = {name: as_float64(array) for name, array in snapshot.items()}
        self.state: Arrays | None = None

    def step(
        self,
        inputs: StepInputs,
        learning_rate: float,
        sizes: Sequence[int],
        read: Mapping[str, np.ndarray] | None = None,
    ) -> Arrays:
        """Do one step and return all that a trace records of it, under the trace's names.

        Args:
          sizes: rows per replica; the oracle has no replicas and only sums its loss by them.
          read: "weight/..." -> the weights to compute the gradient with; None for those of the
            snapshot, which the step updates.
        """
        spec = self.spec
        found = self.differentiate(inputs, sizes, read)
        gradients = {
            name.split("/", 1)[1]: array
            for name, array in found.items()
            if name.startswith("gradient/")
        }
        clipped, norm = clip_by_global_norm(gradients, spec.training.clip_norm)
        slots = update_slots(spec, self.snapshot, clipped)
        moved = update_weights(spec, self.snapshot, slots, clipped, learning_rate)
        self.snapshot = {name: (moved | slots)[name] for name in self.snapshot}
        of_norm: dict[str, Any] = {"gradient_norm": norm}
        return (
            found
            | of_norm
            | {f"clipped_gradient/{name}": array for name, array in clipped.items()}
            | self.snapshot
        )

    def differentiate(
        self,
        inputs: StepInputs,
        sizes: Sequence[int],
        read: Mapping[str, np.ndarray] | None = None,
    ) -> Arrays:
        """Do a step without its update; return what `step` does, up to the gradients.

        Args:
          sizes, read: as for `step`.
        """
        spec = self.spec
        if self.state is None or not inputs.carry:
            zeros = zero_state(spec, inputs.rows)
            self.state = {name: as_float64(array) for name, array in zeros.items()}
        masks = {name: as_float64(mask) for name, mask in inputs.masks.items()}
        weights = recorded_weights(self.snapshot if read is None else read)
        given = inputs.batch, masks, self.state, inputs.loss_divisor, sizes
        activations, gradients = run_network(Share(spec, weights, *given))
        self.state = {name: activations[name] for name in self.state}
        losses = replica_losses(activations["token_loss"], inputs.loss_divisor, sizes)
        return (
            {f"forward/{name}": array for name, array in activations.items()}
            | {"loss/replicas": losses, "loss/global": losses.sum()}
            | {f"gradient/{name}": array for name, array in gradients.items()}
        )


def evaluation_losses(
    spec: Spec, weights: Mapping[str, np.ndarray], inputs: Sequence[StepInputs]
) -> np.ndarray:
    """Return the loss of each batch in nats per real token, float64 [batches].

    The batches are evaluated in their order; one whose `carry` is set continues with the
    recurrent state of the batch before it.

    Args:
      spec: the network, its text and its training.
      weights: parameter name -> array, in the precision to compute in.
      inputs: the batches, each with at least one real token.
    """
    losses = token_losses(spec, weights, inputs)
    return np.array(
        [
            float(each.sum(dtype=np.float64)) / int(batch.batch["lengths"].sum())
            for each, batch in zip(losses, inputs, strict=True)
        ]
    )


def token_losses(
    spec: Spec, weights: Mapping[str, np.ndarray], inputs: Sequence[StepInputs]
) -> Iterator[np.ndarray]:
    """Yield the loss of each token of each batch in nats, [batch, time]; zero for padding.

    Args: as for `evaluation_losses`.
    """
    dtype = next(iter(weights.values())).dtype
    state: Mapping[str, np.ndarray] | None = None
    for each in inputs:
        if state is None or not each.carry:
            state = {
                name: np.asarray(array, dtype)
                for name, array in zero_state(spec, each.rows).items()
            }
        activations, _ = network_function(spec.network)(
            spec.model, weights, each.batch, each.masks, state
        )
        yield activations["token_loss"]
        state = {name: activations[name] for name in state}
