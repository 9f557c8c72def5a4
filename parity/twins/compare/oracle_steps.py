"""What the oracle expects each side to record: training by itself, and in single steps."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from parity.base.at_once import at_once
from parity.compare.tensors import ONE_STEP, ORACLE
from parity.twins.compare.expected_by_oracle import Expected, with_replica_losses
from parity.twins.compare.known_differences import KnownDifferences
from parity.twins.compare.one_step import OneStep
from parity.twins.compare.own_oracles import OwnOracles
from parity.twins.oracle.replay import Replay
from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]


class OracleSteps:
    """Lets the oracle take the steps of all sides.

    Sides that compute the same rows with the same weights share one oracle: all synchronous
    sides do, and the asynchronous ones that keep to one schedule. Another asynchronous side has
    an oracle of its own, which replays what the side did.

    Args:
      expected: computes what a trace should hold.
      sides: label -> side.
      known: the sides that differ from the exact training on purpose.

    Attributes:
      one_step: computes what the oracle expects of single steps.
    """

    def __init__(
        self, expected: Expected, sides: Mapping[str, TrainedSide], known: KnownDifferences
    ):
        self._expected = expected
        self._leader: dict[str, str] = {}  # label -> label of the first side with its oracle
        for label, side in sides.items():
            leaders = (each for each in self._leader if _share(sides[each], side))
            self._leader[label] = self._leader.get(next(leaders, label), label)
        workers = {
            label: side.replicas for label, side in sides.items() if not side.synchronous
        }
        self.one_step = OneStep(expected, known, workers, self._leader)
        self._own_oracles = OwnOracles(known, expected, self.one_step)
        initial, per_epoch = initial_snapshot(expected.spec), expected.batches_per_epoch
        self._oracles: dict[str, Oracle | Replay] = {
            leader: Replay(expected.spec, initial, workers[leader], per_epoch)
            if leader in workers
            else Oracle(expected.spec, initial)
            for leader in dict.fromkeys(self._leader.values())
        }

    def groups(self, tensors: Mapping[str, Tensors]) -> list[dict[str, Tensors]]:
        """Return what was recorded, label -> tensors, apart for each oracle."""
        return [
            {side: tensors[side] for side, leader in self._leader.items() if leader == each}
            for each in self._oracles
        ]

    def inputs(self, step: int, tensors: Mapping[str, Tensors]) -> dict[str, StepInputs]:
        """Return label -> the inputs of that side's step, by the batch that was recorded."""
        found = {each: self._expected.inputs(step, tensors[each]) for each in self._oracles}
        return {side: found[leader] for side, leader in self._leader.items()}

    def take(
        self, step: int, tensors: Mapping[str, Tensors], inputs: Mapping[str, StepInputs]
    ) -> dict[str, dict[str, Tensors]]:
        """Take one step.

        Args:
          step: the step's number.
          tensors: label -> what that side recorded.
          inputs: what `inputs` returned for the step.

        Returns:
          `ORACLE` or `ONE_STEP` -> label -> what the oracle expects of that side.
        """
        found = at_once(
            [
                *(
                    partial(self._expected.step, oracle, inputs[side], step, tensors[side])
                    for side, oracle in self._oracles.items()
                ),
                *(
                    partial(self.one_step.expected, side, inputs[side], step, recorded)
                    for side, recorded in tensors.items()
                ),
            ]
        )
        exact = dict(zip(self._oracles, found, strict=False))
        one_steps = dict(zip(tensors, found[len(exact) :], strict=True))
        shared = {side: exact[self._leader[side]] for side in tensors}
        free = self._own_oracles.free_runs(step, tensors, inputs, shared, one_steps)

        def own(expected: Tensors, side: str) -> Tensors:
            # the oracle sums its losses over the rows that each of the side's replicas had
            return with_replica_losses(expected, tensors[side], inputs[side])

        return {
            ORACLE: {side: own(free[side], side) for side in tensors},
            ONE_STEP: {side: own(one_steps[side], side) for side in tensors},
        }


def _share(a: TrainedSide, b: TrainedSide) -> bool:
    return a.synchronous == b.synchronous and a.takes_steps_of(b)
