"""Isolation: every step of a side starts from the oracle's, and every layer reads its inputs.

A wrong layer makes the layers above it wrong as well, in the backward pass the layers below it,
and after one update everything. In an isolated run each of these paths is cut. Before a step,
the oracle's weights, optimizer state and recurrent state are loaded; each activation that one
layer passes to the next is replaced by the oracle's; and each layer receives the oracle's
gradient of its output. What the layer computes, and the gradient that it passes down, is
recorded and compared. So every tensor that is wrong is wrong by itself.

The cuts are the network's `taps`. What the sides carry from step to step (recurrent state,
weights, replicas that drift apart) is replaced too, so only an ordinary run judges it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class IsolatedStep:
    """A step of the oracle, with what the sides are fed.

    Attributes:
      snapshot: weights and optimizer state before the step, in the run's dtype.
      state: recurrent state before the step, in the run's dtype.
      fed: what replaces the layers' inputs, as in `StepInputs.fed`, in the run's dtype.
      expected: what the oracle computed, under the names of a trace, float64.
    """

    snapshot: Arrays
    state: Arrays
    fed: Arrays
    expected: Arrays


class Isolation:
    """The oracle's training, computed in the same way by each side and by the comparison.

    What one step passes to the next is rounded to the run's precision, so that the oracle and
    the sides start each step from the same numbers.
    """

    def __init__(self, spec: Spec):
        """Start from the initial weights."""
        self.spec = spec
        self._oracle = Oracle(spec, initial_snapshot(spec), d_activations=True)

    def step(
        self, inputs: StepInputs, learning_rate: float, sizes: Sequence[int]
    ) -> IsolatedStep:
        """Take one step.

        Args:
          sizes: rows per replica.
        """
        oracle = self._oracle
        if oracle.state is None or not inputs.carry:
            oracle.state = zero_state(self.spec, inputs.rows)
        snapshot, state = self._rounded(oracle.snapshot), self._rounded(oracle.state)
        expected = oracle.step(inputs, learning_rate, sizes)
        oracle.snapshot = _wide(self._rounded(oracle.snapshot))
        oracle.state = _wide(self._rounded(oracle.state))
        fed = {}
        for name in NETWORKS[self.spec.network].taps(self.spec.model):
            fed[f"fed/{name}"] = expected[f"forward/{name}"]
            fed[f"fed_gradient/{name}"] = expected[f"activation_gradient/{name}"]
        return IsolatedStep(snapshot, state, self._rounded(fed), expected)

    def _rounded(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        dtype = self.spec.training.dtype
        return {name: np.asarray(array, dtype) for name, array in arrays.items()}


def _wide(arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {name: np.asarray(array, np.float64) for name, array in arrays.items()}
