"""Single steps: the oracle starts each from what the side itself recorded."""

from collections.abc import Mapping

import numpy as np

from parity.compare.expected_by_oracle import Expected, wide
from parity.compare.known_differences import KnownDifferences
from parity.oracle.rounding import Rounding
from parity.oracle.training import Oracle
from parity.spec.initial import initial_snapshot, zero_state
from parity.spec.networks import NETWORKS
from parity.spec.parameters import snapshot_names
from parity.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


class OneStep:
    """Computes each rung of a step in float64 from what a side recorded on the rung below.

    Args:
      expected: computes what a trace should hold.
      known: the sides that differ from the exact training on purpose.

    Attributes:
      rounding: label -> the rounding error of the step that was compared last.
    """

    def __init__(self, expected: Expected, known: KnownDifferences):
        self._expected, self._spec, self._known = expected, expected.spec, known
        self._before: dict[str, Tensors] = {}
        self.rounding: dict[str, Rounding] = {}

    def expected(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return what the oracle expects, given the side's weights and state before it."""
        with self._known.oracle_of(side):
            return self.exact(side, inputs, step, recorded)

    def exact(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        """Return the same, but of the exact training, whatever the side does on purpose."""
        snapshot, oracle = self._snapshot(side), Oracle(self._spec, self._snapshot(side))
        before = self._before.get(side)
        if before is not None and inputs.carry:
            state = NETWORKS[self._spec.network].state(self._spec.model)
            oracle.state = {name: wide(before[f"forward/{name}"]) for name in state}
        expected = self._expected.step(oracle, inputs, step, recorded)
        rate = self._expected.rate(step)
        return expected | self._expected.above_gradients(snapshot, recorded, rate)

    def measure(
        self, side: str, inputs: StepInputs, recorded: Tensors, exact: Tensors
    ) -> Rounding:
        """Return the rounding error of a side's step; it is measured once for all sides.

        Args:
          exact: what the oracle expects of the step.
        """
        snapshot, state, _ = self.start(side, inputs)
        kind = self._known.kind(side)
        alike = (r for label, r in self.rounding.items() if self._known.kind(label) == kind)
        self.rounding[side] = Rounding(
            self._spec, snapshot, state, inputs, recorded, exact, next(alike, None)
        )
        return self.rounding[side]

    def start(self, side: str, inputs: StepInputs) -> tuple[Tensors, Tensors, Tensors | None]:
        """Return what a side's step starts from.

        Returns:
          Weights and optimizer state; the recurrent state; and the recurrent state that the
          step before left, whether or not this one goes on from it, None at the first step.
        """
        before, state = self._before.get(side), zero_state(self._spec, inputs.rows)
        if before is None:
            return initial_snapshot(self._spec), state, None
        left = {name: before[f"forward/{name}"] for name in state}
        return self._snapshot(side), left if inputs.carry else state, left

    def forget_rounding(self) -> None:
        """Forget the rounding errors of the step before."""
        self.rounding = {}

    def remember(self, tensors: Mapping[str, Tensors]) -> None:
        """Keep what the sides recorded: the next step starts from it."""
        self._before = dict(tensors)

    def _snapshot(self, side: str) -> dict[str, np.ndarray]:
        before = self._before.get(side)
        if before is None:
            return initial_snapshot(self._spec)
        return {name: before[name] for name in snapshot_names(self._spec)}
