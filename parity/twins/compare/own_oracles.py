"""Oracles that train as a side does on purpose, beside the exact one."""

from collections.abc import Mapping

import numpy as np

from parity.twins.compare.expected_by_oracle import Expected
from parity.twins.compare.known_differences import KnownDifferences
from parity.twins.compare.one_step import OneStep
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


class OwnOracles:
    """Trains an oracle for each side with a known difference, and measures that difference.

    Args:
      known: the sides that differ from the exact training on purpose.
      expected: computes what a trace should hold.
      one_step: computes what is expected of one step of a side.
    """

    def __init__(self, known: KnownDifferences, expected: Expected, one_step: OneStep):
        self._known, self._expected, self._one_step = known, expected, one_step
        spec = expected.spec
        self._oracles = {side: Oracle(spec, initial_snapshot(spec)) for side in known.found}

    def free_runs(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        exact: Mapping[str, Tensors],
        one_steps: Mapping[str, Tensors],
    ) -> dict[str, Tensors]:
        """Take a step with each oracle, and return what each side's free run should hold.

        Args:
          tensors: label -> what that side recorded of the step.
          inputs: label -> the inputs of that side's step.
          exact: label -> what the free run of the exact oracle holds.
          one_steps: label -> what is expected of one step of that side.

        Returns:
          Label -> the free run of the side's own oracle, or else the exact one.
        """
        found = dict(exact)
        for side, oracle in self._oracles.items():
            recorded = tensors[side]
            with self._known.oracle_of(side):
                found[side] = self._expected.step(oracle, inputs[side], step, recorded)
            self._known.add_losses(side, step, recorded, exact[side])
            if self._known.has_effect(side, recorded):
                at_same_weights = self._one_step.exact(side, inputs[side], step, recorded)
                self._known.add(side, step, recorded, one_steps[side], at_same_weights)
        return found
