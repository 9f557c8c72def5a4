"""Isolated runs: every layer of every side reads the oracle's inputs.

Each step of a side is compared with the oracle's own, layer by layer, in either precision; see
parity/twins/oracle/isolated_step.py. The loss is compared with the sum of the side's losses per
token, and each rung above the gradients with what the oracle computes from the rung below it.
So no tensor is wrong because of another one, and all wrong tensors are found, not only the
first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parity.compare.findings import Finding, Worst
from parity.compare.tensors import ONE_STEP, Distance
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.pair_comparison import PairComparison, check_replicas
from parity.twins.oracle.isolated_step import Isolation
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class IsolatedStep:
    """What one step of an isolated run found.

    Attributes:
      findings: those of the pairs first, in their order, then those of each side.
      free, one_steps: label -> what the oracle expects of that side, in the rungs above the
        gradients from its own values or from those that the side recorded below.
    """

    findings: list[Finding]
    free: dict[str, Tensors]
    one_steps: dict[str, Tensors]


class IsolatedRun:
    """Compares the steps of an isolated run.

    Args:
      expected: computes what a trace should hold.
      names: the tensors of a step, in the order of computation.
      pairs: compares two sides.
    """

    def __init__(self, expected: OracleTensors, names: list[str], pairs: PairComparison):
        self._expected, self._names, self._pairs = expected, names, pairs
        self._isolation = Isolation(expected.spec)

    def step(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: StepInputs,
        pairs: list[tuple[str, str]],
        known: Worst,
    ) -> IsolatedStep:
        """Compare one step.

        Args:
          tensors: label -> recorded tensors.
          inputs: the inputs of the step.
          pairs: labels of the sides to compare with each other.
          known: pair -> rung -> the worst distance of the steps before.
        """
        batch = next(iter(tensors.values()))
        rate, sizes = self._expected.rate(step, batch), batch["batch/sizes"].tolist()
        oracle = self._isolation.step(inputs, rate, sizes)
        expected = self._expected.with_batch(oracle.expected, step, batch)
        findings = [
            self._pairs.compare(
                tensors[a], tensors[b], (a, b), step, known.get((a, b)), judge=False
            )
            for a, b in pairs
        ]
        found = IsolatedStep(findings, {}, {})
        for side, recorded in tensors.items():
            found.free[side] = with_replica_losses(expected, recorded, inputs)
            losses = with_replica_losses(recorded, recorded, inputs)["loss/replicas"]
            above = self._expected.above_gradients(oracle.snapshot, recorded, rate)
            one_step = expected | above
            one_step["batch/sizes"] = recorded["batch/sizes"]
            one_step |= {"loss/replicas": losses, "loss/global": losses.sum()}
            found.one_steps[side] = one_step
            pair = side, ONE_STEP
            replicas = check_replicas(recorded, side, step, self._names)
            held = {"replicas": Distance(used=0.0)} | dict(replicas.rungs)
            findings += [
                self._pairs.compare(recorded, one_step, pair, step, known.get(pair)),
                Finding(pair, held, replicas.mismatches),
            ]
        return found
