"""A step that differs -> the causes that the oracle confirms, for each side that departs."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parity.compare.signatures import Evidence, likely_causes, signature
from parity.twins.compare.causes.confirmed import Confirmed
from parity.twins.compare.causes.search import Budget, CauseSearch
from parity.twins.compare.causes.suspect import WrongStep
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]


def confirm_causes(
    evidence: Mapping[str, Evidence],
    expected: OracleTensors,
    per_epoch: int,
    names: list[str],
    tensors: Mapping[str, Tensors],
    inputs: Mapping[str, StepInputs],
    one_step: OneStep,
    sides: Mapping[str, TrainedSide],
    budget: Budget,
) -> list[Confirmed]:
    """Return the mistakes with which the oracle reproduces what sides recorded of a step.

    Args:
      evidence: label -> evidence, for the sides that depart from the oracle.
      expected: computes what a trace should hold.
      per_epoch: the number of steps of an epoch.
      names: the tensors of a step, in the order of computation.
      tensors: label -> what that side recorded.
      inputs: label -> the inputs of that side's step.
      one_step: has what each side recorded before the step.
      sides: label -> side.
      budget: how long the search may take, all sides together.
    """
    found: dict[str, Confirmed] = {}
    for side, seen in evidence.items():
        recorded = tensors[side]
        own, start = inputs[side], one_step.start(side, recorded)
        exact = with_replica_losses(
            one_step.expected(side, own, seen.step, recorded), recorded, own
        )
        wrong = [name for name in names if name in seen.wrong]
        if not any(name in exact for name in wrong):
            continue  # nothing that the oracle computes is wrong
        update = RecordedUpdate.of(recorded)
        case = WrongStep(
            expected.spec,
            seen.step if update is None else update.step,
            per_epoch,
            start.snapshot,
            one_step.state(start, own),
            start.left,
            own,
            recorded,
            exact,
            wrong[0],
            tuple(wrong),
            start.read,
            sides[side],
        )
        causes = likely_causes(signature(seen), seen.network, strategy=seen.strategy)
        likely = [cause.fault for cause in causes]
        with one_step.oracle_of(side):
            confirmed = CauseSearch(case, expected, names, budget).confirmed(likely)
        for each in confirmed:
            before = found.get(each.sentence, replace(each, distance=0.0))
            found[each.sentence] = replace(
                each,
                distance=max(each.distance, before.distance),
                sides=(*before.sides, side),
            )
    return list(found.values())
