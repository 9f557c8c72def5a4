"""Asynchronous runs, with a strategy in NumPy: schedules, losses, resuming and stopping."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from asynchronous_side import PER_EPOCH, SPEC, train
from oracle_side import OracleStrategy

from parity.base.errors import Interrupted, NumericFailure, UsageError
from parity.compare.tensors import ONE_STEP
from parity.trace.reader import Trace
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.spec.asynchronous_schedule import drawn, read_schedule, schedule_text
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.side import TrainedSide
from parity.twins.training.asynchronous_run import EventOrder, Stopped
from parity.twins.training.checkpoint import load_checkpoint
from parity.twins.training.loss_table import read_losses


def test_all_workers_wait_for_each_other_at_the_end_of_an_epoch(tmp_path):
    def hurry(strategy, worker):
        time.sleep(0.002 * worker)  # the first worker is far ahead of the others

    train(tmp_path, SPEC.replace(epochs=3), hurry, replicas=3)
    _, updates = read_schedule(tmp_path / "schedule.jsonl", 3)
    for number, (_, read) in enumerate(updates):
        assert read >= number // (PER_EPOCH * 3) * PER_EPOCH * 3


def test_the_loss_of_a_step_is_that_of_the_whole_batch(tmp_path):
    """With weights that stay as they are, it is the loss of a synchronous run."""
    for loss_per in ("token", "row"):
        spec = SPEC.replace(learning_rate=1e-14, loss_per=loss_per)
        train(tmp_path / f"a-{loss_per}", spec, replicas=3)
        train(tmp_path / f"b-{loss_per}", spec, replicas=3, cls=OracleStrategy)
        rows = [read_losses(tmp_path / f"{each}-{loss_per}" / "losses.csv") for each in "ab"]
        assert [row[::2] for row in rows[0]] == [row[::2] for row in rows[1]]
        losses = [[loss for _, loss, _ in each] for each in rows]
        np.testing.assert_allclose(*losses, rtol=1e-10)


def test_a_run_goes_on_with_other_replicas(tmp_path):
    train(tmp_path, replicas=3, steps=4)
    train(tmp_path, replicas=2, resume="")
    first, updates = read_schedule(tmp_path / "schedule.jsonl", 2)
    assert (first, len(updates)) == (8, 8)
    later = train(tmp_path / "b", replicas=2, resume=str(checkpoint(tmp_path, 8)))
    assert later.computed == 0


def checkpoint(out, step):
    return out / "checkpoints" / f"step-{step:08d}.safetensors"


def test_a_signal_lets_free_workers_wait_for_each_other(tmp_path):
    def interrupt(strategy, worker):
        time.sleep(0.001 * worker)
        if strategy.computed == 11:
            os.kill(os.getpid(), signal.SIGTERM)

    given = {"spec": SPEC.replace(epochs=1), "per_epoch": 100, "replicas": 3}
    with pytest.raises(Interrupted) as caught:
        train(tmp_path, before=interrupt, **given)
    assert "; a checkpoint is written, --resume continues from it" in str(caught.value)
    path = next(iter(sorted((tmp_path / "checkpoints").glob("step-*"), reverse=True)))
    saved = load_checkpoint(path)
    assert f"stopped at step {saved.step};" in str(caught.value)
    assert saved.step < 20, "they do not go on to the end of the epoch"
    _, updates = read_schedule(tmp_path / "schedule.jsonl", 3)
    assert len(updates) == 3 * saved.step
    assert len(read_losses(tmp_path / "losses.csv")) == saved.step
    later = train(tmp_path / "later", resume=str(path), steps=saved.step + 4, **given)
    assert later.computed == 12


def test_a_signal_within_a_schedule_stops_without_a_checkpoint(tmp_path):
    def interrupt(strategy, worker):
        if strategy.computed == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="no checkpoint is written, because the schedule"):
        train(tmp_path, SPEC, interrupt, schedule="1", staleness=0)
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == [
        "step-00000004.safetensors"
    ]


@pytest.mark.parametrize("schedule", ["free", "1"])
def test_a_worker_that_fails_stops_the_others(tmp_path, schedule):
    def fail(strategy, worker):
        if strategy.computed >= 5 and worker == 1:
            strategy.own[1]["weight/softmax/bias"] = np.full_like(
                strategy.own[1]["weight/softmax/bias"], np.nan
            )

    with pytest.raises(NumericFailure, match=r"step \d+, replica 1: loss is nan"):
        train(tmp_path, SPEC, fail, schedule=schedule, replicas=3)
    assert not [each for each in threading.enumerate() if each.name.startswith("worker-")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (slice(0, 5), r"has the updates 0 to 4; the run needs 0 to 7"),
        (slice(0, 8), r"has the updates 0 to 7; the run needs 8 to 15"),
    ],
)
def test_a_schedule_that_is_too_short_is_refused(tmp_path, lines, message):
    text = schedule_text(drawn(1, 2, PER_EPOCH, 0), 2).splitlines(keepends=True)
    path = tmp_path / "schedule"
    path.write_text("".join(text[lines]))
    with pytest.raises(UsageError, match=message):
        train(tmp_path / "run", schedule=str(path))
    assert not (tmp_path / "run" / "run.json").exists(), "it is checked before anything is done"


def test_the_rounding_error_is_that_of_the_weights_that_were_read(tmp_path):
    train(tmp_path, trace=tmp_path / "trace", schedule="1", steps=2, evaluate=0)
    trace = Trace(tmp_path / "trace")
    names = tensor_names(SPEC, asynchronous=True)
    side = TrainedSide.from_json(trace.header)
    expected, sizes = OracleTensors(SPEC, PER_EPOCH, names), []
    first, second = trace.read(0), trace.read(1)
    assert int(second["schedule/read"]) == 0
    for read in (0, 1):
        one_step = OneStep(expected, IntendedDifferences({}), {"a": side})
        # the first update is taken to have made the weights a thousand times as large
        one_step.remember(
            {"a": {n: a * (1000 if "weight/" in n else 1) for n, a in first.items()}}
        )
        recorded = second | {"schedule/read": np.array(read)}
        inputs = expected.inputs(1, recorded)
        exact = one_step.expected("a", inputs, 1, recorded)
        rounding = one_step.measure("a", inputs, recorded, exact)
        sizes.append(rounding.scale("forward/embedded"))
    assert sizes[1] > 100 * sizes[0]


def test_an_update_that_is_staler_than_its_side_allows_is_found(tmp_path):
    train(tmp_path, trace=tmp_path, schedule="1", staleness=3, replicas=3, steps=8, evaluate=0)
    trace = Trace(tmp_path)
    for allowed in (3, 1):
        settings = trace.header["settings"] | {"staleness": allowed}
        comparison = RunComparison({"a": trace.header | {"settings": settings}})
        comparison.compare({"a": trace.read(step)} for step in trace.numbers())
        assert comparison.verdict.matches == (allowed == 3)
    first = comparison.verdict.mismatches[0]
    assert first.place.tensor == "schedule/read"
    assert first.values["a"] < first.values[ONE_STEP], "it read too old a version"
    assert comparison.verdict.departing() == ["a"]


def test_no_worker_reads_or_updates_once_the_run_has_stopped():
    order = EventOrder(0, None)
    with order.reading(0) as version:
        assert version == 0
    with pytest.raises(ZeroDivisionError), order.applying(0):
        raise ZeroDivisionError
    assert order.count == 0, "an update that failed is none"
    order.stop()
    for turn in (order.reading, order.applying):
        with pytest.raises(Stopped), turn(0):
            pass
