"""The training loop, with a strategy in NumPy: resuming, stopping, failing, what is left."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SIGNALS, one_line
from oracle_side import OracleStrategy, small_spec, text, train_with

from parity.base.errors import Interrupted, NumericFailure, UsageError
from parity.trace.reader import Trace
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.spec import learning_rate
from parity.twins.spec.step_arrays import StepInputs, StepResult, check_finite
from parity.twins.training.checkpoint import load_checkpoint, newest_checkpoint
from parity.twins.training.loss_table import read_validations
from parity.twins.training.meter import WARM_UP, Meter
from parity.twins.training.run_folder import RunFolder
from parity.twins.training.start import Side, run_training

ROOT = Path(__file__).resolve().parent.parent
SPEC = small_spec()
PER_EPOCH = 4


class Recording(OracleStrategy):
    """Keeps the losses and rates of its steps, and may do something before one."""

    def __init__(self, spec, build, before=None):
        super().__init__(spec, build)
        self.losses, self.rates, self.before, self.done = [], [], before, 0

    def step(self, inputs, state, learning_rate, record=False):
        if self.before:
            self.before(self, self.done)
        result = super().step(inputs, state, learning_rate, record)
        self.losses.append(result.losses)
        self.rates.append(learning_rate)
        self.done += 1
        return result


def train(out, spec=SPEC, per_epoch=PER_EPOCH, before=None, **options):
    """Run a training; return its strategy and its summary."""
    options = TrainOptions(out=out, **{"replicas": 2} | options)
    return train_with(partial(Recording, before=before), spec, options, text(spec, per_epoch))


def steps_saved(out) -> list[int]:
    return sorted(load_checkpoint(p).step for p in (out / "checkpoints").glob("step-*"))


def same_checkpoint(first, second) -> None:
    """See that two files hold the same; the order of their metadata is safetensors' own."""
    a, b = load_checkpoint(first), load_checkpoint(second)
    assert (a.spec, a.step, a.corpus, a.framework) == (b.spec, b.step, b.corpus, b.framework)
    for name in a.snapshot:
        np.testing.assert_array_equal(a.snapshot[name], b.snapshot[name])
    assert a.vocabularies == b.vocabularies
    assert list(a.state) == list(b.state) == ["c", "h"]
    for name in a.state:
        np.testing.assert_array_equal(a.state[name], b.state[name])


def scalars(out) -> dict[str, dict[int, float]]:
    """Return what event files hold, tag -> step -> value, without TensorBoard's own reader.

    A record is its length (8 bytes) and a checksum (4), its content, and a checksum (4).
    """
    # not above: the package loads PyTorch, unless an EventWriter has loaded it before
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for path in sorted((out / "events").glob("events.out.tfevents.*")):
        content, start = path.read_bytes(), 0
        while start < len(content):
            length = int.from_bytes(content[start : start + 8], "little")
            event = Event.FromString(content[start + 12 : start + 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
            start += 16 + length
    return found


# what a run does


def test_a_run_trains_validates_tests_and_learns(tmp_path, capsys):
    spec = SPEC.replace(learning_rate=0.05, clip_norm=5.0, epochs=3)
    strategy, summary = train(tmp_path, spec, per_epoch=20)
    assert strategy.done == summary.steps == 60
    assert len(summary.valid_perplexity) == 3
    assert summary.valid_perplexity[-1] < summary.valid_perplexity[0] < 7
    assert summary.test_perplexity == perplexity_of(strategy, "test")
    assert strategy.rates == [learning_rate(spec.training, step // 20) for step in range(60)]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000060.safetensors\n"
    said = capsys.readouterr().err
    assert "epoch 3: validation perplexity" in said
    assert "lowest possible 1.500" in said
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored == dataclasses.asdict(summary)
    assert stored["best_perplexity"] == {"valid": 1.5, "test": None}
    assert (stored["framework"], stored["replicas"], stored["dtype"]) == ("numpy", 2, "float64")
    assert json.loads((tmp_path / "run.json").read_text())["spec"] == spec.to_json()


def perplexity_of(strategy, split):
    """Return exp of the mean loss over a split's real tokens, the state carried."""
    batches = getattr(text(strategy.spec), split)
    total = tokens = 0
    state = None
    for step in range(batches.batches_per_epoch):
        batch = batches.batch(step)
        names = "tokens", "targets", "lengths"
        inputs = StepInputs({name: getattr(batch, name) for name in names}, batch.carry)
        if state is None or not batch.carry:
            state = dict.fromkeys("hc", np.zeros((len(batch.tokens), 2, 4)))
        result = strategy.evaluate(inputs, state)
        state, count = result.state, batch.lengths.sum()
        total, tokens = total + result.loss * count, tokens + count
    return math.exp(total / tokens)


def test_steps_end_a_run_early_and_without_a_test(tmp_path):
    strategy, summary = train(tmp_path, steps=3)
    assert strategy.done == 3
    assert summary.test_perplexity is None
    assert summary.valid_perplexity == [perplexity_of(strategy, "valid")]
    assert steps_saved(tmp_path) == [3]


# resuming


@pytest.mark.parametrize("batching", ["stream", "sentences"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("stop", [1, 3, 4, 6])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(tmp_path, batching, dtype, stop):
    spec = SPEC.replace(batching=batching, dtype=dtype)
    whole, summary = train(tmp_path / "whole", spec)
    train(tmp_path / "cut", spec, steps=stop)
    rest, resumed = train(tmp_path / "cut", spec, resume="")
    assert rest.done == 8 - stop
    np.testing.assert_array_equal(rest.losses, whole.losses[stop:])
    np.testing.assert_array_equal(rest.rates, whole.rates[stop:])
    for name, array in whole.snapshot().items():
        np.testing.assert_array_equal(rest.snapshot()[name], array)
    assert resumed.test_perplexity == summary.test_perplexity
    rows = [read_validations(tmp_path / each / "validations.csv") for each in ("whole", "cut")]
    assert [row for row in rows[1] if row.step != stop or stop == PER_EPOCH] == rows[0]
    assert resumed.valid_perplexity == [row.perplexity for row in rows[1]]
    same_checkpoint(
        *(
            tmp_path / each / "checkpoints/step-00000008.safetensors"
            for each in ("whole", "cut")
        )
    )


def test_a_run_that_ended_while_it_validated_does_so_when_it_resumes(tmp_path):
    class Fails(Recording):
        def evaluate(self, *given):
            raise ZeroDivisionError

    whole, _ = train(tmp_path / "whole")
    given = SPEC, TrainOptions(out=tmp_path / "cut", replicas=2), text(SPEC, PER_EPOCH)
    with pytest.raises(ZeroDivisionError):
        train_with(Fails, *given)
    rest, _ = train(tmp_path / "cut", resume="")
    assert whole.done - rest.done == PER_EPOCH
    for name in ("validations.csv", "checkpoints/best.json"):
        written = [(tmp_path / each / name).read_bytes() for each in ("whole", "cut")]
        assert written[0] == written[1]


def test_a_finished_run_resumes_to_nothing_or_to_more_epochs(tmp_path, capsys):
    whole, _ = train(tmp_path / "whole", SPEC.replace(epochs=3))
    _, first = train(tmp_path / "cut")
    summary = (tmp_path / "cut/summary.json").read_bytes()
    capsys.readouterr()
    for flag, last, given in (("epochs", 2, {}), ("steps", 8, {"steps": 8})):
        nothing, again = train(tmp_path / "cut", resume="", **given)
        said = f"8 steps; nothing is left to train: --{flag} is {last}, and a greater one goes"
        assert said in (errors := capsys.readouterr().err)
        assert "nan" not in errors
        assert nothing.done == 0
        assert (tmp_path / "cut/summary.json").read_bytes() == summary
    assert again.test_perplexity == first.test_perplexity
    more, _ = train(tmp_path / "cut", SPEC.replace(epochs=3), resume="")
    np.testing.assert_array_equal(more.losses, whole.losses[8:])


def test_resuming_after_damage_falls_back_loudly_and_ends_the_same(tmp_path, capsys):
    whole, _ = train(tmp_path / "whole")
    train(tmp_path / "cut", steps=6, checkpoint_every=1)
    newest = tmp_path / "cut/checkpoints/step-00000006.safetensors"
    content = bytearray(newest.read_bytes())
    content[-5] ^= 4
    newest.write_bytes(content)
    capsys.readouterr()
    rest, _ = train(tmp_path / "cut", resume="")
    said = capsys.readouterr().err
    assert f"skipped a checkpoint: {newest}: damaged" in said
    assert "resumed at step 5" in said
    np.testing.assert_array_equal(rest.losses, whole.losses[5:])


def test_resuming_where_there_is_nothing_says_so(tmp_path, capfd):
    _, summary = train(tmp_path, resume="", steps=2)
    assert summary.steps == 2
    assert "has no checkpoint to resume; starting at step 0" in capfd.readouterr().err


def test_steps_that_lie_behind_the_checkpoint_are_refused(tmp_path):
    train(tmp_path, steps=4)
    with pytest.raises(UsageError, match=r"--steps is 3, but the checkpoint is at step 4"):
        train(tmp_path, resume="", steps=3)


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/step-00000003.safetensors"])
def test_a_run_resumes_from_what_is_named(tmp_path, named):
    train(tmp_path / "first", steps=3)
    rest, _ = train(tmp_path / "second", resume=str(tmp_path / "first" / named))
    assert rest.done == 5
    assert steps_saved(tmp_path / "first") == [3]


def test_going_back_in_the_same_folder_goes_on_from_there(tmp_path):
    train(tmp_path, steps=3)
    kept = tmp_path / "kept.safetensors"
    kept.write_bytes((tmp_path / "checkpoints/step-00000003.safetensors").read_bytes())
    train(tmp_path, resume="")
    assert steps_saved(tmp_path) == [4, 8]
    train(tmp_path, resume=str(kept), steps=6, checkpoint_every=1)
    assert steps_saved(tmp_path) == [5, 6]
    rest, _ = train(tmp_path, resume="")
    assert rest.done == 2


def test_another_spec_or_text_is_refused_before_anything_is_written(tmp_path):
    train(tmp_path, steps=3)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match="another run: hidden_size 4 there, 6 here"):
        train(tmp_path, SPEC.replace(hidden_size=6), resume="")
    with pytest.raises(UsageError, match="another run: seed 3 there, 4 here"):
        train(tmp_path, SPEC.replace(seed=4), resume="")
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    rest, _ = train(tmp_path, SPEC.replace(seed=4), resume="", allow_change=True)
    assert rest.done == 5


# the run's folder


def test_overwriting_removes_the_old_run_and_nothing_else(tmp_path):
    train(tmp_path, SPEC.replace(seed=9))
    others = "notes.txt", "checkpoints/best.pt", "checkpoints/words.txt", "events/mine"
    mine = [tmp_path / name for name in others]
    old = tmp_path / "checkpoints" / "source.vocabulary.txt"  # pairs were trained on before
    old.write_text("<pad>\n")
    for path in mine:
        path.write_text("mine")
    train(tmp_path, steps=3, overwrite=True)
    assert steps_saved(tmp_path) == [3]
    assert [path.read_text() for path in mine] == ["mine"] * 4
    assert not old.exists()
    assert list(scalars(tmp_path)["loss/global"]) == [0, 1, 2]
    assert json.loads((tmp_path / "run.json").read_text())["spec"] == SPEC.to_json()
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 3


def test_overwriting_a_folder_of_others_removes_nothing(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-00000001.safetensors").write_text("of another tool")
    options = TrainOptions(out=tmp_path, overwrite=True)
    RunFolder(options).prepare(SPEC, options, SPEC)
    assert (tmp_path / "checkpoints" / "step-00000001.safetensors").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_named_before_building(tmp_path, place):
    (tmp_path / "file").touch()

    def never(spec):
        raise AssertionError("the training was built")

    options = TrainOptions(out=tmp_path / place)
    with pytest.raises(UsageError, match="cannot be written") as caught:
        run_training(Side(never, dict), text(SPEC), SPEC, options)
    assert str(tmp_path / place) in one_line(caught)


# numbers that are not finite


def test_a_nan_stops_training_and_the_last_checkpoint_stays(tmp_path):
    def spoil(strategy, step):
        if step == 5:
            strategy.held["weight/lstm_1/bias"] = np.full(16, np.nan)

    with pytest.raises(NumericFailure) as caught:
        train(tmp_path, before=spoil, checkpoint_every=1)
    assert "step 5, replica 0: state c of layer 1 is not finite" in one_line(caught, 3)
    assert newest_checkpoint(tmp_path / "checkpoints", []).step == 5
    whole, _ = train(tmp_path / "whole")
    rest, _ = train(tmp_path, resume="")
    np.testing.assert_array_equal(rest.losses, whole.losses[5:])


def test_weights_that_overflow_are_not_saved(tmp_path):
    """Loss and gradient of the step are finite; the weights after it are not."""

    def overflow(strategy, step):
        if step == 3:
            strategy.spec = strategy.spec.replace(epsilon=1e-300, clip_norm=1e300)
            strategy.held["optimizer/softmax/bias/m"] = np.full(7, 1e308)

    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(NumericFailure) as caught:
        train(tmp_path, SPEC.replace(learning_rate=100.0), before=overflow, checkpoint_every=1)
    assert "step 4, all replicas: weight/softmax/bias is not finite" in one_line(caught, 3)
    assert newest_checkpoint(tmp_path / "checkpoints", []).step == 3


def test_replicas_that_drift_are_not_saved(tmp_path):
    def drift(strategy, step):
        if step == 6:
            strategy.drift = 1e-9

    with pytest.raises(NumericFailure) as caught:
        train(tmp_path, before=drift)
    said = one_line(caught, 3)
    assert said.startswith("step 8: replica 1 has drifted from replica 0 in weight/embed/table")
    assert steps_saved(tmp_path) == [4]


def result(**values):
    fine = {
        "losses": np.array([0.5, 0.7]),
        "state": {"h": np.zeros((5, 2, 3)), "c": np.zeros((5, 2, 3))},
        "gradient_norm": 1.0,
        "tensors": {},
    }
    return StepResult(**fine | values)


def at(row, layer, value=np.nan):
    array = np.zeros((5, 2, 3))
    array[row, layer, 1] = value
    return array


NAN_LOSS = {"losses": np.array([0.5, np.nan])}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (NAN_LOSS, "step 7, replica 1: loss is nan"),
        ({"losses": np.array([np.inf, -np.inf])}, "step 7, replica 0: loss is inf"),
        (
            {"gradient_norm": np.inf},
            "step 7, all replicas: norm of the summed gradient is inf",
        ),
        (
            NAN_LOSS | {"state": {"h": at(2, 0), "c": at(4, 1)}},
            "step 7, replica 0: state h of layer 0 is not finite; the loss is nan",
        ),
        (  # that of a cell without c
            NAN_LOSS | {"state": {"h": at(4, 1)}},
            "step 7, replica 1: state h of layer 1 is not finite; the loss is nan",
        ),
    ],
)
def test_the_first_number_that_is_not_finite_is_named(values, said):
    with pytest.raises(NumericFailure) as caught:
        check_finite(result(**values), 7, [3, 2])
    assert one_line(caught, 3) == said


# signals


@pytest.fixture
def signals_as_before():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_before")
@pytest.mark.parametrize(("number", "status"), SIGNALS.items())
def test_signals_stop_after_the_step_with_a_checkpoint(tmp_path, number, status):
    """All that come within two seconds are one request, even while the process ends."""

    def interrupt(strategy, step):
        if step == 2:
            for each in (number, number, signal.SIGTERM):
                os.kill(os.getpid(), each)

    with pytest.raises(Interrupted) as caught:
        train(tmp_path, before=interrupt)
    assert one_line(caught, status) == (
        "stopped at step 3; a checkpoint is written, --resume continues from it"
    )
    assert steps_saved(tmp_path) == [3]
    os.kill(os.getpid(), number)
    whole, _ = train(tmp_path / "whole")
    rest, _ = train(tmp_path, resume="")
    np.testing.assert_array_equal(rest.losses, whole.losses[3:])


SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from test_training_loop import train
def slow(strategy, step):
    print(step, flush=True)
    time.sleep(30)
train(Path(sys.argv[1]), before=slow)
"""


def test_a_signal_two_seconds_after_the_first_stops_at_once(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    for pause in (0.2, 2.5):
        process.send_signal(signal.SIGTERM)
        time.sleep(pause)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM
    process.stdout.close()


# traces


def test_a_traced_run_leaves_a_trace_and_says_where_and_nothing_else(tmp_path, capsys):
    traced, summary = train(tmp_path / "run", trace=tmp_path / "trace")
    assert not (tmp_path / "run").exists()
    assert summary.valid_perplexity == []
    assert capsys.readouterr().err.splitlines()[-1] == f"trace: {tmp_path / 'trace'}"
    plain, _ = train(tmp_path / "plain")
    np.testing.assert_array_equal(traced.losses, plain.losses)


def test_a_nan_is_in_the_trace_before_training_stops(tmp_path):
    def spoil(strategy, step):
        if step == 1:
            strategy.held["weight/lstm_1/bias"] = np.full(16, np.nan)

    with pytest.raises(NumericFailure):
        train(tmp_path, before=spoil, trace=tmp_path / "trace")
    trace = Trace(tmp_path / "trace")
    assert len(list(trace.lines())) == 2
    assert np.isnan(trace.read(1)["loss/global"])


# throughput


def test_the_meter_leaves_the_first_steps_out_and_counts_waiting(monkeypatch):
    """A step is preceded by a wait of 0.01 s, and both are training time."""
    meter, now, waited = Meter(), 0.0, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    for step in range(WARM_UP + 4):
        waited += 0.01
        now += 1.01  # with what is no training
        meter.start(waited)
        now += 0.5 if step < WARM_UP else 0.04
        meter.stop(100, waited)
    found = meter.report()
    speed = found["tokens_per_second"]
    assert speed == pytest.approx(dict.fromkeys(("median", "low", "high"), 400 / 0.2))
    assert found["seconds_per_step"] == pytest.approx(0.05)
    assert found["waiting_share"] == pytest.approx(0.2)


def test_the_meter_says_nothing_of_a_run_within_the_warm_up():
    meter = Meter()
    assert meter.recent == 0.0
    for _ in range(WARM_UP):
        meter.start(0.0)
        meter.stop(100, 0.0)
    assert set(meter.report()) == {"seconds_to_first_step"}
