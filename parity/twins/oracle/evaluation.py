"""Evaluates a network with the oracle: the loss of each batch of a split, without dropout."""

from collections.abc import Mapping, Sequence

import numpy as np

from parity.twins.oracle.language_model import network_function
from parity.twins.spec.initial import zero_state
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs


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
    dtype = next(iter(weights.values())).dtype
    losses = []
    state: Mapping[str, np.ndarray] | None = None
    for each in inputs:
        if state is None or not each.carry:
            state = {
                name: np.asarray(array, dtype)
                for name, array in zero_state(spec, each.rows).items()
            }
        activations, _ = network_function(spec.network)(
            spec.model, weights, each.batch, {}, state
        )
        total = activations["token_loss"].sum(dtype=np.float64)
        losses.append(float(total) / int(each.batch["lengths"].sum()))
        state = {name: activations[name] for name in state}
    return np.array(losses)
