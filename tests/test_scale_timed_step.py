"""What `parity scale` measures of a side: costs that noise may hide, and what is then said."""

import itertools

import pytest

from parity.base.errors import UsageError
from parity.twins.scale.model import Engine
from parity.twins.scale.timed_step import REPEATED, Measured, step_and_software
from parity.twins.scale.workload import gradients
from parity.twins.spec.spec import preset

SPEC = preset("language-model", "tiny").replace(batch_size=8)
FIXED, PER_ROW, PER_COLLECTIVE, PER_BYTE = 0.01, 0.002, 0.003, 2e-9
SIZE = gradients(SPEC, 8).dense


def measured(noise=(0.0,), per_byte=PER_BYTE, per_row=PER_ROW, cores=2) -> Measured:
    """Measure a machine on which each time has the next of some errors, again and again."""
    errors = itertools.cycle(noise)

    def seconds(spec, ranks, copies):
        assert (ranks, copies) in ((1, 1), (2, 1), (1, 2))
        time = FIXED + per_row * spec.training.batch_size / ranks + next(errors)
        if ranks == 2:
            time += PER_COLLECTIVE
            if spec.model.hidden_size == SPEC.model.hidden_size:
                time += per_byte * SIZE
        return time

    return step_and_software(SPEC, Engine(), seconds, cores)


def test_the_costs_of_a_quiet_machine_are_found():
    found = measured()
    assert (found.compute.fixed, found.compute.per_row) == pytest.approx((FIXED, PER_ROW))
    assert found.engine.per_collective == pytest.approx(PER_COLLECTIVE)
    # each of two ranks sends as many bytes as the gradients have
    assert found.engine.per_byte == pytest.approx(PER_BYTE)
    assert found.engine.per_message > 0
    assert {len(each) for each in found.readings.values()} == {1, REPEATED}


def test_a_cost_below_zero_is_none():
    # the small network with two ranks seems faster than without communication
    found = measured([0.0] * 3 + [0.0, -1.0, 0.0, 0.0] * 3)
    assert found.engine.per_collective == 0


def test_a_step_that_seems_to_take_no_longer_with_more_rows_is_refused():
    with pytest.raises(UsageError, match=r"no longer with 16 rows than with 4 in 3 .* allowed"):
        measured(per_row=-0.0001)


def test_what_rows_cost_is_measured_again_if_noise_hides_it():
    # the step with twice the rows was the fastest, the first time
    found = measured([0.0, 0.0, -0.03, *[0.0] * 100])
    assert len(found.readings["8 rows"]) > 1
    assert found.compute.per_row > 0


def test_software_is_not_measured_where_ranks_would_share_a_core():
    found = measured(cores=1)
    assert found.engine == Engine()
