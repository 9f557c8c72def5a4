"""The weights that a worker read: whole, of another version, torn, or of none."""

from dataclasses import replace

import numpy as np
import pytest

from parity.twins.compare.read_weights import check_read_weights
from parity.twins.oracle.replay import PastWeights, RecordedUpdate
from parity.twins.spec.asynchronous_schedule import FREE, STALENESS, Update
from parity.twins.spec.strategies import StrategySettings
from parity.twins.trace.side import TrainedSide

NAMES = ("embed/table", "lstm_0/bias", "softmax/kernel")


def version(number: int) -> dict[str, np.ndarray]:
    return {
        f"weight/{name}": np.arange(6.0).reshape(2, 3) + 10 * number + k
        for k, name in enumerate(NAMES)
    }


def test_a_version_beyond_the_staleness_that_is_allowed_is_not_expected():
    def expected(staleness: int | None, read: int) -> int:
        past = PastWeights(2, 100, version(0), staleness)
        for number, update in enumerate([(0, 0), (0, 1), (0, 2)], start=1):
            past.add(Update(*update), version(number))
        return past.expected(RecordedUpdate(1, 0, read, 4, 7)).read

    assert [expected(None, 0), expected(3, 0), expected(1, 0), expected(1, 2)] == [0, 0, 2, 2]
    settings = StrategySettings(schedule="5")
    side = TrainedSide("paddle", settings=settings)
    assert side.greatest_staleness == STALENESS
    for changes, allowed in (
        ({"staleness": 3}, 3),
        ({"schedule": FREE}, None),
        ({"schedule": "file.jsonl"}, None),
    ):
        changed = replace(side, settings=replace(settings, **changes))
        assert changed.greatest_staleness == allowed


@pytest.fixture
def past():
    """Return versions 0 to 4 of the weights of two workers; both read version 0 at first."""
    found = PastWeights(2, 100, version(0))
    for number, update in enumerate([(0, 0), (1, 0), (0, 1), (0, 3)], start=1):
        found.add(Update(*update), version(number))
    return found


def recorded(worker: int, read: int, copies) -> dict[str, np.ndarray]:
    first_row = [0, 4][worker]
    values = {
        "worker": worker,
        "batch": 1,
        "read": read,
        "first_row": first_row,
        "of_rows": 7,
    }
    schedule = {f"schedule/{name}": np.array(value) for name, value in values.items()}
    return schedule | {name.replace("weight/", "read/"): a for name, a in copies.items()}


def checked(past, worker, read, copies):
    return check_read_weights(recorded(worker, read, copies), past, "tensorflow-2", 4)


def test_the_version_of_the_schedule_is_right_to_the_bit(past):
    distance, mismatch = checked(past, 1, 3, version(3))
    assert mismatch is None
    assert distance.used == 0
    off = version(3)
    off["weight/softmax/kernel"] = np.nextafter(off["weight/softmax/kernel"], 99)
    _, mismatch = checked(past, 1, 3, off)
    assert mismatch.place.tensor == "read/softmax/kernel"
    assert mismatch.note == (
        "worker 1's copy of softmax/kernel is none of the versions 0 to 4 of the weights"
    )
    assert (mismatch.within, mismatch.rung) == ("tensorflow-2", "replicas")
    assert mismatch.sides == ("tensorflow-2 worker 1", "tensorflow-2 version 3")


def test_another_version_is_named_even_the_one_that_the_worker_read_before(past):
    for other in (2, 4, 0):
        _, mismatch = checked(past, 1, 3, version(other))
        assert mismatch.note == (
            f"worker 1 read version {other} of the weights; the schedule says version 3"
        )


@pytest.mark.parametrize("other", [4, 0])
def test_a_copy_of_two_versions_is_torn_by_whatever_cause(past, other):
    mixed = version(3) | {"weight/softmax/kernel": version(other)["weight/softmax/kernel"]}
    _, mismatch = checked(past, 1, 3, mixed)
    assert mismatch.place.tensor == "read/softmax/kernel"
    assert mismatch.note == (
        "a torn read: worker 1 has embed/table, lstm_0/bias of version 3; "
        f"softmax/kernel of version {other}"
    )


def test_a_tensor_can_be_torn_in_itself(past):
    mixed = version(3)
    mixed["weight/embed/table"] = mixed["weight/embed/table"].copy()
    mixed["weight/embed/table"][1] = version(2)["weight/embed/table"][1]
    distance, mismatch = checked(past, 1, 3, mixed)
    assert mismatch.note.endswith(
        "has embed/table of versions 2 and 3; lstm_0/bias, softmax/kernel of version 3"
    )
    assert (mismatch.count, mismatch.size) == (3, 6)
    assert mismatch.place.tensor == "read/embed/table"
    assert distance.absolute == 10
