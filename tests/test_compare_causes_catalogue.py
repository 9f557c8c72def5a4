"""Each fault of the catalogue is a change of the oracle, or the catalogue says why not."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from planted_step import Planted

from parity.twins.compare.causes.suspects import suspects
from parity.twins.faults.catalogue import CATALOGUE
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.trace.side import TrainedSide

# the first step; two inside an epoch, in the second of which the steps of two workers together
# would end it; the first of the second epoch, which decays
STEPS = (0, 1, 2, 4)


@cache
def stands_for(setting: str) -> frozenset[str]:
    """Return the faults that some suspect of a setting's run stands for."""
    run, found = SETTINGS[setting], set()
    synchronous = not run.settings.schedule
    side = TrainedSide("", "", run.replicas, synchronous=synchronous, settings=run.settings)
    for step in STEPS:
        case = replace(Planted(run.spec, step, run.replicas).case, side=side)
        if not synchronous:  # the second worker has read the weights before its step
            rows = {"worker": 1, "batch": step, "read": 0, "first_row": 1, "of_rows": 99}
            schedule = {f"schedule/{name}": np.array(value) for name, value in rows.items()}
            recorded = {**case.recorded, **schedule}
            case = replace(case, recorded=recorded, read=case.snapshot)
        frozen = replace(case, wrong=("weight/softmax/bias",))
        tables = ("gradient/embed/table", "gradient/lstm_0/bias")
        some = replace(case, wrong=tables)
        # a side that started from no biases
        zeros = {n: np.zeros_like(a) for n, a in case.snapshot.items() if n.endswith("/bias")}
        cases = [case, frozen, some, replace(case, snapshot={**case.snapshot, **zeros})]
        found |= {fault for each in cases for s in suspects(each) for fault in s.faults}
    return frozenset(found)


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_a_fault_has_a_suspect_or_a_reason(fault):
    known = fault.name in stands_for(fault.setting)
    assert known == fault.is_confirmable
    # a check of whole runs is reason enough
    assert not (fault.check and fault.unconfirmable_reason)


def test_suspects_stand_for_faults_of_the_catalogue():
    names = {fault.name for fault in CATALOGUE}
    for setting in SETTINGS:
        assert stands_for(setting) <= names


def test_most_faults_can_be_made_by_the_oracle():
    in_steps = [fault for fault in CATALOGUE if not fault.check]
    assert sum(fault.is_confirmable for fault in in_steps) >= 0.8 * len(in_steps)


def test_names_of_suspects_are_unique():
    for run in SETTINGS.values():
        case = Planted(run.spec, 1, run.replicas).case
        case = replace(case, side=TrainedSide("", settings=run.settings), read=case.snapshot)
        names = [suspect.name for suspect in suspects(case)]
        assert len(set(names)) == len(names)
