"""The training loop of the oracle: what a trainer does in a step, in plain NumPy."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from parity.oracle.language_model import network_function
from parity.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.spec.initial import zero_state
from parity.spec.spec import Spec
from parity.spec.step_arrays import StepInputs

Arrays = dict[str, np.ndarray]


class Oracle:
    """The training of a network, step by step, as the frameworks' trainers do it.

    Attributes:
      snapshot: weights and optimiser state before the next step, float64.
      state: before the next step, name -> array, or None at the start of a text.
    """

    def __init__(
        self,
        spec: Spec,
        snapshot: Mapping[str, np.ndarray],
        *,
        d_activations: bool = False,
    ):
        """Start from a snapshot (in any precision) and from the start of the text.

        Args:
          d_activations: also return the gradients of what layers hand to each other.
        """
        self._d_activations = d_activations
        self.spec = spec
        self.snapshot = {name: np.asarray(a, np.float64) for name, a in snapshot.items()}
        self.state: Arrays | None = None

    def step(self, inputs: StepInputs, learning_rate: float, sizes: Sequence[int]) -> Arrays:
        """Do one step and return all that a trace records of it, under the trace's names.

        Args:
          sizes: rows per replica; the oracle has no replicas and only sums its loss by them.
        """
        spec = self.spec
        if self.state is None or not inputs.carry:
            self.state = {
                name: np.asarray(array, np.float64)
                for name, array in zero_state(spec, inputs.rows).items()
            }
        masks = {name: np.asarray(mask, np.float64) for name, mask in inputs.masks.items()}
        weights = {
            name.split("/", 1)[1]: array
            for name, array in self.snapshot.items()
            if name.startswith("weight/")
        }
        found: Arrays = {}
        activations, gradients = network_function(spec.network)(
            spec.model,
            weights,
            inputs.batch,
            masks,
            self.state,
            found,
            divisor=inputs.loss_divisor,
        )
        if not self._d_activations:
            found = {}
        clipped, norm = clip_by_global_norm(gradients, spec.training.clip_norm)
        slots = update_slots(spec, self.snapshot, clipped)
        moved = update_weights(spec, self.snapshot, slots, clipped, learning_rate)
        self.snapshot = {name: (moved | slots)[name] for name in self.snapshot}
        self.state = {name: activations[name] for name in self.state}

        row_loss = activations["token_loss"].sum(axis=1) / inputs.loss_divisor
        bounds = np.cumsum([0, *sizes])
        losses = np.array([row_loss[a:b].sum() for a, b in pairwise(bounds)])
        return (
            {f"forward/{name}": array for name, array in activations.items()}
            | {"loss/replicas": losses, "loss/global": losses.sum()}
            | {f"activation_gradient/{name}": array for name, array in found.items()}
            | {f"gradient/{name}": array for name, array in gradients.items()}
            | {"gradient_norm": norm}
            | {f"clipped_gradient/{name}": array for name, array in clipped.items()}
            | self.snapshot
        )
