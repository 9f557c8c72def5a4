"""Schedules of asynchronous updates: what is drawn, written and refused."""

import json

import pytest

from parity.base.errors import UsageError
from parity.twins.spec.asynchronous_schedule import (
    DrawnSchedule,
    ListedSchedule,
    Update,
    drawn,
    read_schedule,
    schedule_text,
)

STEPS = 30


def staleness(updates) -> list[int]:
    return [number - read for number, (_, read) in enumerate(updates)]


@pytest.mark.parametrize(("workers", "most"), [(2, 1), (2, 3), (3, 8), (4, 8)])
def test_the_greatest_staleness_is_reached(workers, most):
    found = [each for seed in range(10) for each in staleness(drawn(seed, workers, 60, most))]
    assert set(found) == set(range(most + 1))


def test_the_seed_decides_the_schedule():
    assert drawn(7, 3, STEPS, 3) == drawn(7, 3, STEPS, 3)
    assert drawn(7, 3, STEPS, 3) != drawn(8, 3, STEPS, 3)
    # the first updates of a seed, which must be the same on every machine
    assert drawn(1, 2, 2, 1) == [Update(0, 0), Update(1, 0), Update(0, 1), Update(1, 3)]


def test_every_segment_is_drawn_by_itself():
    schedule = DrawnSchedule(3, 2, 1)
    second = schedule.between(5, 10)
    assert len(second) == 10
    assert min(read for _, read in second) == 10, "all workers have applied ten updates before"
    assert second == DrawnSchedule(3, 2, 1).between(5, 10), "as after resuming"
    assert [(w, r - 10) for w, r in second] != schedule.between(0, 5)
    assert schedule.between(5, 10, 4) == second[:4]


@pytest.fixture
def listed(tmp_path):
    """Return a function that writes a schedule's lines to a file, some of them replaced."""

    def write(replaced=None, workers=2, steps=4):
        lines = schedule_text(drawn(1, workers, steps, 1), workers).splitlines()
        for line, text in (replaced or {}).items():
            lines[line - 1] = text
        path = tmp_path / "schedule.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines if line is not None))
        return path

    return write


def test_a_file_may_begin_later(tmp_path):
    updates = DrawnSchedule(1, 2, 1).between(5, 8)
    path = tmp_path / "later.jsonl"
    path.write_text(schedule_text(updates, 2, 5))
    assert json.loads(path.read_text().splitlines()[0])["update"] == 10
    assert read_schedule(path, 2) == (10, updates)
    assert ListedSchedule(path, 2).between(5, 8) == updates
    with pytest.raises(UsageError, match="has the updates 10 to 15; the run needs 0 to 5"):
        ListedSchedule(path, 2).between(0, 3)


def line(update=1, worker=1, batch=0, read=0):
    return json.dumps({"update": update, "worker": worker, "batch": batch, "read": read})


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({2: "1 0"}, ":2: '1 0'; allowed: a JSON object with the integers update, worker"),
        ({2: '{"update": 1, "worker": 1, "batch": 0}'}, ":2: .*allowed: a JSON object"),
        ({2: line(read=True)}, ":2: .*allowed: a JSON object with the integers"),
        ({2: line(update=2)}, ":2: update is 2; allowed: 1$"),
        ({1: line(update=1, worker=0)}, ":1: update is 1; allowed: a multiple of 2"),
        ({2: line(worker=2)}, ":2: worker is 2; allowed: 0 to 1"),
        ({2: line(batch=1)}, ":2: batch is 1; allowed: 0$"),
        ({2: line(read=2)}, ":2: read is 2; allowed: 0 to 1"),
        ({2: line(worker=0, batch=1, read=0)}, ":2: read is 0; allowed: 1$"),
        (dict.fromkeys(range(1, 9)), "not a schedule: the file is empty"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(listed, replaced, message):
    with pytest.raises(UsageError, match=message):
        read_schedule(listed(replaced), 2)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"missing\.jsonl': No such file"):
        read_schedule(tmp_path / "missing.jsonl", 2)


def test_a_schedule_of_other_workers_is_refused(listed):
    with pytest.raises(UsageError, match="allowed: all workers wait for each other"):
        # of three workers the third has no update
        ListedSchedule(listed(workers=2, steps=6), 3).between(0, 4)


def test_no_update_reads_across_the_end_of_a_segment(listed):
    schedule = ListedSchedule(listed(steps=4), 2)
    assert schedule.between(0, 4, 3) == drawn(1, 2, 4, 1)[:3]
    with pytest.raises(UsageError, match=r":\d+: update \d+ of worker . .*where an epoch ends"):
        schedule.between(0, 1), schedule.between(1, 4)
