"""A rank that is lost ends all others; nothing saved is lost, and a run goes on to the bit."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import (
    COLLECTIVE,
    LOGGED,
    children,
    chosen,
    ended,
    flags,
    wait_for,
    wait_for_checkpoint,
)

from parity.twins.launch.edited_source import Edit
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.loss_table import read_losses

# most checkpoints are not at the end of an epoch, where no recurrent state goes on
STEPS, EPOCH, EVERY = 60, 20, 6


def sides(*names: str):
    """Run a test with some strategies: those that sum gradients, and Horovod's."""
    entries = chosen(lambda entry: entry.name in names)
    return pytest.mark.parametrize(("framework", "entry"), entries)


def all_with(name: str, first, other):
    """Run a test with all of them and two values; the other one quickly with Paddle's alone."""
    cases = [
        pytest.param(*each.values, value, id=f"{each.id}-{value}", marks=each.marks)
        for value, quick in ((first, COLLECTIVE.values()), (other, [COLLECTIVE["paddle"]]))
        for each in chosen(
            lambda entry: entry.name in (*COLLECTIVE.values(), "horovod"),
            lambda entry, quick=quick: entry.name in quick,
        )
    ]
    return pytest.mark.parametrize(("framework", "entry", name), cases)


ONE = sides(COLLECTIVE["paddle"])  # of what all do by the same code


@pytest.fixture
def train(framework, entry, trainings, text, cache, tmp_path):
    """Return a function that starts a training in two processes and returns its Job."""

    def start(out: str = "run", **given):
        values = {"strategy": entry.name, "processes": 2, "steps": STEPS, "data": text}
        values |= {"cache": cache, "out": tmp_path / out, "optimizer": "adam"}
        values |= {"checkpoint_every": EVERY, "batching": "stream"}
        values |= {"time": 1}
        return trainings.server(framework, entry.name).train(*flags(**values | given))

    return start


def kill(process: int, folder: Path, rank: int, number: int) -> int:
    """Send a signal to a rank once there is a checkpoint; return the rank's process."""
    wait_for_checkpoint(folder)
    killed = children(process)[rank]
    os.kill(killed, number)
    return killed


@all_with("rank", 1, 0)
def test_a_killed_rank_ends_the_training_and_what_is_saved_is_whole(rank, train, tmp_path):
    """From which it goes on as from any checkpoint."""
    job = train()
    before = children(job.pid) if kill(job.pid, tmp_path / "run", rank, signal.SIGKILL) else []
    errors = ended(job, 4)
    assert not LOGGED.search(errors), errors
    (line,) = [each for each in errors.splitlines() if each.startswith("error: ")]
    expected = r"rank 0 was killed by SIGKILL" if rank == 0 else r"rank 1 \(.*\) is gone: .*"
    assert re.fullmatch(f"error: {expected}", line)
    assert not any(Path(f"/proc/{each}").exists() for each in before)
    notes: list[str] = []
    saved = newest_checkpoint(tmp_path / "run" / "checkpoints", notes)
    assert saved is not None
    assert 0 in (saved.step % EVERY, saved.step % EPOCH)
    assert not notes, "a checkpoint is not whole"
    assert len(read_losses(tmp_path / "run" / "losses.csv")) >= saved.step


@sides(COLLECTIVE["paddle"], "horovod")
def test_a_training_starts_again_by_itself(train, tmp_path):
    job = train(max_restarts=2)
    kill(job.pid, tmp_path / "run", 1, signal.SIGKILL)
    errors = ended(job)
    assert "starting again from the newest checkpoint, 1 of 2 times" in errors
    assert len(read_losses(tmp_path / "run" / "losses.csv")) == STEPS


@pytest.mark.thorough
@ONE
def test_a_run_that_has_saved_nothing_starts_again_from_its_beginning(train, tmp_path):
    job, marker = train(max_restarts=1), tmp_path / "run" / "run.json"
    wait_for(marker.exists, seconds=120)
    os.kill(children(job.pid)[1], signal.SIGKILL)
    assert not any((tmp_path / "run" / "checkpoints").glob("step-*")), "it came too late"
    errors = ended(job)
    assert "starting again" in errors
    assert "resumed" not in errors
    assert len(read_losses(tmp_path / "run" / "losses.csv")) == STEPS


@pytest.mark.thorough
@ONE
def test_a_restart_does_not_take_an_old_run_for_its_own(train, tmp_path):
    """If a rank is lost before the run that is to be overwritten is gone."""
    assert train(seed=2, steps=10).wait()[0] == 0
    job = train(max_restarts=1, overwrite=True, steps=10)
    wait_for(lambda: len(children(job.pid)) == 2)
    os.kill(children(job.pid)[0], signal.SIGKILL)
    errors = ended(job)
    assert "resumed" not in errors
    assert train("whole", steps=10).wait()[0] == 0
    tables = [(tmp_path / each / "losses.csv").read_bytes() for each in ("run", "whole")]
    assert tables[0] == tables[1]


@all_with("to", "all", "one")
def test_a_signal_stops_all_after_the_same_step(to, train, tmp_path):
    """Whether a single rank gets it, or all do, and again from their supervisor."""
    job = train(max_restarts=2)
    if to == "one":
        kill(job.pid, tmp_path / "run", 1, signal.SIGHUP)
    else:
        wait_for_checkpoint(tmp_path / "run")
        for each in (job.pid, *children(job.pid)):
            os.kill(each, signal.SIGTERM)
    errors = ended(job, 129 if to == "one" else 143)
    assert "starting again" not in errors
    step = int(re.search(r"error: stopped at step (\d+); a checkpoint is written", errors)[1])
    saved = newest_checkpoint(tmp_path / "run" / "checkpoints", [])
    assert saved is not None
    assert saved.step == step


@pytest.mark.thorough
@sides(*COLLECTIVE.values())
def test_a_rank_may_stand_still_for_a_while(train, tmp_path):
    """Longer than TensorFlow's own watch would allow, and shorter than the group does."""
    job = train(epochs=10_000, steps=None)
    stopped = kill(job.pid, tmp_path / "run", 1, signal.SIGSTOP)
    time.sleep(14)
    os.kill(stopped, signal.SIGCONT)
    os.kill(job.pid, signal.SIGTERM)
    ended(job, 143)


@ONE  # for TensorFlow see the test below
def test_what_is_asked_to_stop_while_it_starts_is_not_started_again(train):
    job = train(max_restarts=2)
    wait_for(lambda: len(children(job.pid)) == 2)
    time.sleep(0.3)  # until the supervisor listens
    os.kill(job.pid, signal.SIGTERM)
    errors = ended(job, 143)
    assert "starting again" not in errors
    assert "error: " in errors


def test_a_signal_is_heard_as_soon_as_the_engine_has_started(frameworks, text, cache, tmp_path):
    """Whose own handler of SIGTERM only takes notice."""
    started = "        self._log_devices(strategy.extended.worker_devices)\n"
    asks = "        import signal, time\n        os.kill(os.getppid(), signal.SIGTERM)\n"
    file = "tf_impl/strategies/multi_worker.py"
    edits = (Edit(file, started, f"{started}{asks}        time.sleep(5)\n"),)
    given = {"strategy": "multi-worker", "processes": 2, "steps": STEPS, "data": text}
    given |= {"cache": cache, "out": tmp_path / "run"}
    ended(frameworks["tensorflow"].train(*flags(**given), edits=edits), 143)
