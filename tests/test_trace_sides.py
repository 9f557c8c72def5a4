"""Sides are structures: what reports call them, and which of them are compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.base.errors import UsageError
from parity.twins.spec.strategies import StrategySettings
from parity.twins.trace.side import TrainedSide, labels_of, pairs_of

PADDLE = TrainedSide("paddle", "parallel-executor", 2, "fast")
TENSORFLOW = TrainedSide("tensorflow", "towers", 2, "fast")
AVERAGED = replace(TENSORFLOW, strategy="average-gradients")


def pairs(*sides):
    """Return the pairs that are compared, as places in the list of sides."""
    labels = [str(place) for place in range(len(sides))]
    found = pairs_of(dict(zip(labels, sides, strict=True)))
    return [tuple(map(int, pair)) for pair in found]


def test_a_side_is_read_as_it_was_written():
    settings = StrategySettings(stages=2, schedule="free")
    side = TrainedSide("paddle", "parallel-executor", 3, "plain", 2, False, settings)
    assert TrainedSide.from_json(json.loads(json.dumps(side.to_json()))) == side
    assert TrainedSide.from_json(side.to_json() | {"spec": {}, "corpus": "a"}) == side


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicas": "2"}, "replicas is '2'; allowed: a whole number"),
        ({"replicas": True}, "replicas is True; allowed: a whole number"),
        ({"synchronous": 1}, "synchronous is 1; allowed: true or false"),
        ({"settings": "stages=2"}, "settings is 'stages=2'; allowed: an object"),
        ({"settings": {"stages": "2"}}, "stages is '2'; allowed: a whole number"),
        (
            {"settings": {"stage": 2}},
            "settings has 'stage'; allowed: stages, micro_batches, shard_weights, schedule, "
            "staleness, processes, servers",
        ),
    ],
)
def test_a_value_of_another_type_is_refused(change, message):
    with pytest.raises(UsageError) as caught:
        TrainedSide.from_json(PADDLE.to_json() | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("sides", "labels"),
    [
        ([PADDLE, TENSORFLOW], ["paddle-2", "tensorflow-2"]),
        (
            [PADDLE, TENSORFLOW, AVERAGED],
            ["paddle-2", "tensorflow-2 towers", "tensorflow-2 average-gradients"],
        ),
        (
            [PADDLE, replace(PADDLE, kernels="plain")],
            ["paddle-2 fast", "paddle-2 plain"],
        ),
        (
            [PADDLE, replace(PADDLE, processes=2), TENSORFLOW],
            ["paddle-2 1 process", "paddle-2 2 processes", "tensorflow-2"],
        ),
    ],
)
def test_labels_are_the_shortest_that_tell_sides_apart(sides, labels):
    assert labels_of(sides) == labels
    assert labels_of(sides, [Path("folder")] * len(sides)) == labels


def test_sides_that_are_alike_are_told_apart_by_their_folders():
    found = labels_of([PADDLE, PADDLE], [Path("runs/a"), Path("runs/b")])
    assert found == ["paddle-2 (runs/a)", "paddle-2 (runs/b)"]
    with pytest.raises(UsageError, match="allowed: sides that differ"):
        labels_of([PADDLE, PADDLE])


def asynchronous(side, schedule, replicas=2):
    return replace(
        side,
        strategy="asynchronous",
        settings=StrategySettings(schedule=schedule),
        replicas=replicas,
        synchronous=False,
    )


ONE = [replace(side, replicas=1) for side in (PADDLE, TENSORFLOW)]
PLAIN = [replace(side, kernels="plain") for side in (PADDLE, TENSORFLOW)]
THIRD = replace(TENSORFLOW, strategy="third")
BY_SCHEDULE = [asynchronous(side, "1") for side in (PADDLE, TENSORFLOW)]
UNSYNCHRONISED = [replace(PADDLE, synchronous=False, replicas=n) for n in (1, 2, 3)]
FREE = [asynchronous(side, "free") for side in (PADDLE, TENSORFLOW)]
COMPARED = {
    "frameworks at the same number of replicas": (
        [*ONE, PADDLE, TENSORFLOW],
        [(0, 1), (0, 2), (1, 3), (2, 3)],
    ),
    "a further strategy with the first of its framework": (
        [PADDLE, TENSORFLOW, AVERAGED, THIRD],
        [(0, 1), (1, 2), (1, 3)],
    ),
    "a strategy with itself at another number of replicas": (
        [PADDLE, TENSORFLOW, AVERAGED, replace(AVERAGED, replicas=3)],
        [(0, 1), (1, 2), (2, 3)],
    ),
    "plain kernels with fast ones": (
        [PADDLE, TENSORFLOW, *PLAIN],
        [(0, 1), (0, 2), (1, 3), (2, 3)],
    ),
    "two sides alone": ([PADDLE, replace(AVERAGED, replicas=5)], [(0, 1)]),
    "asynchronous ones that keep to one schedule": (
        [PADDLE, TENSORFLOW, *BY_SCHEDULE, asynchronous(TENSORFLOW, "2")],
        [(0, 1), (2, 3)],
    ),
    "but not at several numbers of replicas": (
        [*BY_SCHEDULE, *(replace(side, replicas=3) for side in BY_SCHEDULE)],
        [(0, 1), (2, 3)],
    ),
    "nor where they run freely": ([PADDLE, TENSORFLOW, *FREE], [(0, 1)]),
    "one worker with one replica": ([ONE[0], asynchronous(PADDLE, "free", 1)], [(0, 1)]),
    "nor several workers": ([ONE[0], BY_SCHEDULE[0]], []),
    "none at several numbers of replicas": (UNSYNCHRONISED, []),
    "the first synchronous one with others": (
        [UNSYNCHRONISED[0], PADDLE, replace(PADDLE, replicas=3)],
        [(1, 2)],
    ),
}


@pytest.mark.parametrize("case", COMPARED)
def test_sides_are_compared(case):
    sides, expected = COMPARED[case]
    assert pairs(*sides) == expected
