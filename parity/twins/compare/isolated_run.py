"""Isolated runs: every layer of every side reads the oracle's inputs.

Each step of a side is compared with the oracle's own, layer by layer, in either precision; see
parity/twins/oracle/isolated_step.py. The loss is compared with the sum of the side's losses per
token, and each rung above the gradients with what the oracle computes from the rung below it.
So no tensor is wrong because of another one, and all wrong tensors are found, not only the
first.
"""

from collections.abc import Mapping

import numpy as np

from parity.compare.disagreement import find_disagreement
from parity.compare.steps import StepFound
from parity.compare.tensors import ONE_STEP, Distance, Mismatch
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.pair_comparison import PairComparison, check_replicas
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.isolated_step import Isolation
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


class IsolatedRun:
    """Compares the steps of an isolated run, and keeps what they show in a verdict.

    Args:
      expected: computes what a trace should hold.
      names: the tensors of a step, in the order of computation.
      pairs: compares two sides.
      verdict: what is filled.
    """

    def __init__(
        self,
        expected: OracleTensors,
        names: list[str],
        pairs: PairComparison,
        verdict: RunVerdict,
    ):
        self._expected, self._names, self._pairs = expected, names, pairs
        self._verdict, self._isolation = verdict, Isolation(expected.spec)

    def step(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: StepInputs,
        pairs: list[tuple[str, str]],
    ) -> None:
        """Compare one step.

        Args:
          tensors: label -> recorded tensors.
          inputs: the inputs of the step.
          pairs: labels of the sides to compare with each other.
        """
        batch = next(iter(tensors.values()))
        rate, sizes = self._expected.rate(step, batch), batch["batch/sizes"].tolist()
        oracle = self._isolation.step(inputs, rate, sizes)
        expected = self._expected.with_batch(oracle.expected, step, batch)
        every: list[Mismatch] = []
        distances: Mapping[str, Distance] = {}
        shared: dict[str, Tensors] = {}
        one_steps: dict[str, Tensors] = {}
        for place, (a, b) in enumerate(pairs):
            found = self._compare(tensors[a], tensors[b], (a, b), step, judge=False)
            every += found.mismatches
            if not place:
                distances = found.distances
        for side, recorded in tensors.items():
            shared[side] = with_replica_losses(expected, recorded, inputs)
            losses = with_replica_losses(recorded, recorded, inputs)["loss/replicas"]
            above = self._expected.above_gradients(oracle.snapshot, recorded, rate)
            one_step = expected | above
            one_step["batch/sizes"] = recorded["batch/sizes"]
            one_step |= {"loss/replicas": losses, "loss/global": losses.sum()}
            one_steps[side] = one_step
            every += self._compare(recorded, one_step, (side, ONE_STEP), step).mismatches
            replicas = check_replicas(recorded, side, step, self._names)
            every += replicas.mismatches
            held = {"replicas": Distance(used=0.0)} | replicas.of_rungs
            self._verdict.add_distances((side, ONE_STEP), held)
        self._verdict.history.add(step, tensors, shared, distances)
        self._verdict.history.add_shares(self._pairs.take_shares())
        self._verdict.mismatches = sorted(
            every, key=lambda mismatch: self._names.index(mismatch.place.tensor)
        )
        self._verdict.oracle = shared
        if every:
            self._verdict.disagreement = find_disagreement(
                self._verdict.mismatches,
                self._verdict.sides,
                self._verdict.dtype,
                tensors,
                {ONE_STEP: one_steps},
            )
        self._verdict.steps = step + 1
        self._verdict.compared = sum(
            any(name in recorded for recorded in tensors.values()) for name in self._names
        )

    def _compare(
        self, a: Tensors, b: Tensors, sides: tuple[str, str], step: int, *, judge: bool = True
    ) -> StepFound:
        known = self._verdict.pairs.get(sides)
        found = self._pairs.compare(a, b, sides, step, known, judge=judge)
        self._verdict.add_distances(sides, found.of_rungs)
        return found
