"""Checks of whole runs: repeat, resume, untraced, counting, answers; with sides in NumPy."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from oracle_side import OracleStrategy, recorded_steps, small_pairs_spec, small_spec, text

from parity.compare.findings import find_in_exact_check
from parity.compare.tensors import ONE_STEP
from parity.trace.reader import Trace
from parity.twins.cli.options import TrainOptions
from parity.twins.compare.answers import AnswersRung, SideAnswers
from parity.twins.compare.resumed import Resumed, ResumeRung, beyond_limits
from parity.twins.compare.verdict import RunVerdict
from parity.twins.compare.whole_runs import (
    compare_counts,
    compare_losses,
    compare_repeated,
    compare_untraced,
    first_difference,
    recorded_step,
)
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import bleu, exact_share
from parity.twins.oracle.decode import OracleModel
from parity.twins.run.answer_probes import answer_probes
from parity.twins.run.compare_while_training import (
    RESUMED_STEPS,
    checkpoint_every,
    step_to_resume,
)
from parity.twins.spec.initial import initial_snapshot
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import load_checkpoint, save_checkpoint
from parity.twins.training.loss_table import read_losses
from parity.twins.training.meter import WARM_UP
from parity.twins.training.start import Side, run_training

SPEC = small_spec()
SIDES = {
    name: TrainedSide(name.split("-")[0], "one", 2) for name in ("paddle-2", "tensorflow-2")
}
PER_EPOCH = 4


def verdict_of(spec=SPEC):
    return RunVerdict(spec.training.dtype, sides=SIDES)


# bits, and two runs of one command


def test_one_bit_is_a_difference():
    a = {"x": np.array([1.0, np.nan, 0.0]), "y": np.arange(3)}
    assert first_difference(a, {n: v.copy() for n, v in a.items()}, ("a", "b"), 0, a) is None
    b = {"x": np.array([1.0, np.nan, -0.0]), "y": np.arange(3)}
    found = first_difference(a, b, ("a", "b"), 4, a)
    assert (found.place.step, found.place.tensor, found.place.index) == (4, "x", (2,))
    assert (found.count, found.size) == (1, 3)
    b = {"x": a["x"], "y": np.arange(3, dtype=np.int32)}
    assert "int64 [3] against int32 [3]" in first_difference(a, b, ("a", "b"), 0, a).problem
    assert first_difference(a, {"x": a["x"]}, ("a", "b"), 0, a).problem == "only a has it"


def test_two_runs_that_differ_are_told_as_one_sides():
    (tensors,) = recorded_steps(SPEC, 1)
    assert compare_repeated("paddle-2", 0, tensors, dict(tensors), tensors) is None
    other = dict(tensors)
    name = "gradient/lstm_0/bias"
    other[name] = np.nextafter(tensors[name], np.inf)
    found = compare_repeated("paddle-2", 0, tensors, other, tensors)
    assert (found.place.tensor, found.rung, found.within) == (name, "repeat", "paddle-2")
    assert found.count == tensors[name].size
    verdict = verdict_of().with_checks([find_in_exact_check("repeat", found.sides, found)])
    assert verdict.departing() == ["paddle-2"]
    assert not verdict.matches


# resuming


class Resumable(OracleStrategy):
    """Makes a mistake in what it loads, if it is given one, and shows it or not."""

    def __init__(self, spec, build, mistake=None, shown=True):
        self.mistake, self.shown, self.given = None, shown, None
        super().__init__(spec, build)
        self.mistake = mistake

    def load(self, snapshot):
        self.given = None if self.shown else snapshot
        super().load(self.mistake(dict(snapshot)) if self.mistake else snapshot)

    def snapshot(self):
        given, self.given = self.given, None
        return super().snapshot() if given is None else dict(given)


def run(folder, spec=SPEC, mistake=None, shown=True, **options):
    """Record a run with checkpoints, or resume one; return its steps."""
    run_training(
        Side(lambda spec, build: Resumable(spec, build, mistake, shown), dict),
        text(spec, PER_EPOCH),
        spec,
        TrainOptions(out=folder / "out", trace=folder / "trace", **options),
    )
    return dict(Trace(folder / "trace").steps())


@pytest.fixture(scope="module")
def went_on(tmp_path_factory):
    """Return a folder with a checkpoint after step 1, and the run that went on."""
    folder = tmp_path_factory.mktemp("saved")
    steps = run(folder, steps=5, checkpoint_every=2, replicas=2, evaluate=0)
    return folder / "out" / "checkpoints" / "step-00000002.safetensors", steps


def resumed(went_on, folder, saver, loader, mistake=None, replicas=2, shown=True):
    """Resume the checkpoint; return the verdict."""
    path, steps = went_on
    checkpoint = load_checkpoint(path)
    if saver != loader:
        (folder / "moved").mkdir(parents=True)
        moved = beyond_limits(checkpoint.snapshot)
        path = save_checkpoint(folder / "moved", replace(checkpoint, snapshot=moved))
    given = {"steps": 4, "resume": str(path), "evaluate": 0, "replicas": replicas}
    found = run(folder, mistake=mistake, shown=shown, **given)
    around = {number: steps[number] for number in (1, 2, 3)}
    run_again = Resumed(saver, loader, 2, around, found, checkpoint.snapshot)
    return verdict_of().with_checks([ResumeRung(SPEC, PER_EPOCH, SIDES).compare(run_again)])


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_run_that_is_resumed_goes_on(went_on, tmp_path, replicas):
    verdict = resumed(went_on, tmp_path / "a", "paddle-2", "tensorflow-2", replicas=replicas)
    assert verdict.matches
    limits = {fact.name: fact.count for fact in verdict.coverage}
    assert limits == {
        "loss beyond 63 nats": 2,
        "hidden unit saturated": 2,
        "embedding longer than 1": 2,
        "zero gradient": 1,
        "denormal gradient": 2,
    }
    if replicas == 2:
        own = resumed(went_on, tmp_path / "b", "paddle-2", "paddle-2")
        assert own.matches
        assert own.pairs["paddle-2", "paddle-2 resumed"]["resume"].absolute == 0


def swapped(snapshot):
    other = {"m": "v", "v": "m"}
    return {
        name[:-1] + other[name[-1]] if name[-2:] in ("/m", "/v") else name: (
            abs(array) if name[-2:] in ("/m", "/v") else array
        )
        for name, array in snapshot.items()
    }


def lost_powers(snapshot):
    first = initial_snapshot(SPEC)
    return snapshot | {n: first[n] for n in first if n.startswith("optimizer/beta")}


# what is loaded -> where it shows, how it is made of the checkpoint, and where it shows if it
# is not seen before the first step
MISTAKES = {
    "moments exchanged": (
        swapped,
        "optimizer/embed/table/m",
        "paddle-2 resumed has optimizer/embed/table/v there",
        "optimizer/",
    ),
    "powers lost": (
        lost_powers,
        "optimizer/beta1_power",
        "paddle-2 resumed has the initial value there",
        "optimizer/",
    ),
    "initial weights": (
        lambda snapshot: initial_snapshot(SPEC),
        "weight/embed/table",
        "paddle-2 resumed has the initial value there",
        "forward/",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_lost_on_load_is_found_before_the_first_step(went_on, tmp_path, mistake):
    change, where, made, _ = MISTAKES[mistake]
    for name, loader in (("own", "paddle-2"), ("other", "tensorflow-2")):
        verdict = resumed(went_on, tmp_path / name, "paddle-2", loader, change)
        first = verdict.mismatches[0]
        assert (first.rung, first.place.step, first.place.tensor) == ("resume", 2, where)
        assert verdict.departing() == [loader]
        assert f"{loader} does not start from what the checkpoint that paddle-2" in first.note
        assert ("what is in the file is right" in first.note) == (name == "own")
        told = [each.sentence for each in verdict.explanations]
        assert told == [made.replace("paddle-2", loader)] * bool(made)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_lost_after_loading_is_found_by_either_way_of_resuming(
    went_on, tmp_path, mistake
):
    change, _, _, where = MISTAKES[mistake]
    for loader in ("paddle-2", "tensorflow-2"):
        verdict = resumed(went_on, tmp_path / loader, "paddle-2", loader, change, shown=False)
        first = verdict.mismatches[0]
        assert (first.rung, first.place.step) == ("resume", 2)
        assert first.place.tensor.startswith(where)
        assert verdict.departing() == [loader]
    assert set(first.values) == {"tensorflow-2", ONE_STEP}


def test_a_checkpoint_that_holds_other_values_than_were_recorded_is_found(went_on):
    path, steps = went_on
    saved = {"weight/softmax/bias": steps[1]["weight/softmax/bias"] + 1e-16}
    saved = load_checkpoint(path).snapshot | saved
    embedded = steps[2]["forward/embedded"] + 1e-16  # what it leads to is not named
    after = {2: steps[2] | {"forward/embedded": embedded}, 3: steps[3]}
    run_again = Resumed("paddle-2", "paddle-2", 2, steps, after, saved)
    (found,) = ResumeRung(SPEC, PER_EPOCH, SIDES).compare(run_again).mismatches
    assert (found.place.tensor, found.within) == ("weight/softmax/bias", "paddle-2")


def test_a_checkpoint_of_another_step_is_found(went_on, tmp_path):
    checkpoint, steps = went_on
    found = run(tmp_path, steps=4, resume=str(checkpoint), evaluate=0, replicas=2)
    later = {number + 1: tensors for number, tensors in found.items()}
    around = {n: steps[n] for n in (1, 2, 3)}
    rung = ResumeRung(SPEC, PER_EPOCH, SIDES)
    finding = rung.compare(Resumed("paddle-2", "paddle-2", 2, around, later, {}))
    assert "has steps [3, 4]; steps [2, 3] follow" in finding.first.problem


def test_the_checkpoint_is_within_an_epoch_if_there_is_one():
    assert checkpoint_every(1) is None
    assert step_to_resume(1, 4, kept=2) is None
    assert step_to_resume(2, 4, kept=2) == 1
    assert step_to_resume(20, 250, kept=2) == 7
    assert step_to_resume(20, 7, kept=2) in (14, 7)
    for steps in range(2, 40):
        for per_epoch in (1, 2, 3, 5, 7, 50):
            every, step = checkpoint_every(steps), step_to_resume(steps, per_epoch, kept=2)
            written = list(range(every, steps + 1, every))[-2:]
            assert step in written
            assert 0 < step < steps
            if any(each % per_epoch and each < steps for each in written):
                assert step % per_epoch
    assert RESUMED_STEPS == 2


# trainings that record nothing


@pytest.fixture(scope="module", params=["token", "row"])
def trained(request, tmp_path_factory):
    """Return the recorded steps of a run, and the rows and summary of the same unrecorded."""
    spec = SPEC.replace(loss_per=request.param)
    folder = tmp_path_factory.mktemp("trained")
    steps = run(folder / "traced", spec, steps=6, replicas=2, evaluate=0)
    recorded = [recorded_step(step, each, request.param) for step, each in steps.items()]
    summary = run_training(
        Side(OracleStrategy, dict),
        text(spec, PER_EPOCH),
        spec,
        TrainOptions(out=folder / "out", replicas=2),
    )
    rows = read_losses(folder / "out" / "losses.csv")
    assert len(rows) == 8 == WARM_UP + 3
    return recorded, rows, dataclasses.asdict(summary)


def test_a_training_that_records_nothing_has_the_same_losses(trained):
    recorded, rows, _ = trained
    assert compare_untraced("paddle-2", recorded, rows) is None
    other = [*rows[:3], (3, float(np.nextafter(rows[3][1], 9)), rows[3][2]), *rows[4:]]
    found = compare_untraced("paddle-2", recorded, other)
    assert (found.rung, found.place.step, found.within) == ("untraced", 3, "paddle-2")
    assert abs(found.values["paddle-2"] - found.values["paddle-2 untraced"]) < 1e-14
    found = compare_untraced("paddle-2", recorded, [rows[1], *rows[1:]])
    assert "has step 1 in the place of step 0" in found.problem


def test_the_speed_rests_on_the_tokens_of_the_batches(trained):
    recorded, rows, summary = trained
    given = recorded, rows, summary
    assert compare_counts("paddle-2", *given, seconds=60.0, warm_up=WARM_UP) is None
    measured = summary["measured"]
    assert measured["tokens"] == sum(row[2] for row in rows[WARM_UP:])


def miscounted(rows, summary, name):
    measured, speed = dict(summary["measured"]), dict(summary["tokens_per_second"])
    if name == "losses.csv/tokens":
        rows = [*rows[:2], (*rows[2][:2], rows[2][2] + 1), *rows[3:]]
    elif name == "summary.json/steps":
        summary = summary | {"steps": summary["steps"] + 1}
    elif name == "summary.json/tokens_per_second":
        speed = {reading: 2 * value for reading, value in speed.items()}
    elif name == "summary.json/measured_seconds":
        measured["seconds"] = 1e6
    else:
        measured[name.rpartition("measured_")[2]] += 1
    return rows, summary | {"measured": measured, "tokens_per_second": speed}


@pytest.mark.parametrize(
    "name",
    [
        "losses.csv/tokens",
        "summary.json/steps",
        "summary.json/measured_first_step",
        "summary.json/measured_of_steps",
        "summary.json/measured_tokens",
        "summary.json/measured_seconds",
        "summary.json/tokens_per_second",
    ],
)
def test_a_wrong_count_is_found_in_its_place(trained, name):
    recorded, rows, summary = trained
    given = recorded, *miscounted(rows, summary, name)
    found = compare_counts("paddle-2", *given, seconds=60.0, warm_up=WARM_UP)
    assert (found.place.tensor, found.rung, found.within) == (name, "counting", "paddle-2")


def test_later_losses_are_bounded_by_what_rounding_does_to_one_side():
    rows = [(step, 5.0 - step, 10) for step in range(4)]
    moved = [(step, loss + 1e-6 * 10**step, 10) for step, loss, _ in rows[:3]]
    sides = ("paddle-2", "tensorflow-2")

    def found(apart):
        other = [(step, loss + by, 10) for (step, loss, _), by in zip(rows, apart, strict=True)]
        return compare_losses(sides, rows, other, moved, "float32").first

    assert found([1e-5, 1e-4, 1e-2, 1.0]) is None, "the last one has no bound"
    wrong = found([1e-5, 1e-2, 1e-2, 0.0])
    assert (wrong.rung, wrong.place.step, wrong.sides) == ("untraced", 1, sides)
    assert 2e-3 < wrong.allowed < 3e-3


# answers

PAIRS = small_pairs_spec(initial_scale=1.5, target_segmenter="spaces")
SOURCE = np.array([[4, 5, 6, 4], [6, 5, 0, 0], [5, 4, 4, 0]])
LENGTHS = np.array([4, 2, 3])
REFERENCES = ["w4 w5", "w5", "w6 w6 w7"]


def weights_of(snapshot):
    return {n.split("/", 1)[1]: a for n, a in snapshot.items() if n.startswith("weight/")}


def answered(snapshot, search, **changes):
    """Return what a faithful side writes, some of its settings changed."""
    model = OracleModel(PAIRS.model, weights_of(snapshot))
    search = dataclasses.replace(search, **changes)
    settings = search.beam, search.length_penalty, search.longest
    lines = []
    for row, found in enumerate(beam_search(model, SOURCE, LENGTHS, *settings)):
        best = found.best
        lines.append(
            {
                "source": SOURCE[row, : LENGTHS[row]].tolist(),
                "tokens": list(best.tokens),
                "finished": best.finished,
                "score": best.score,
                "answer": " ".join(f"w{token}" for token in best.tokens),
                "reference": REFERENCES[row],
            }
        )
    return scored(lines)


def scored(lines):
    texts, references = ([line[name] for line in lines] for name in ("answer", "reference"))
    share = exact_share(texts, references, "spaces")
    return SideAnswers(lines, bleu(texts, references, "spaces"), share)


def probes():
    return answer_probes(initial_snapshot(PAIRS), beam=3, length_penalty=0.6, longest=4)


def judged(probe, other):
    rung = AnswersRung(PAIRS, probe.snapshot, 7)
    right = answered(probe.snapshot, probe.search)
    found = rung.compare({"paddle-2": right, "tensorflow-2": other}, probe.search)
    verdict = verdict_of(PAIRS).with_checks(found)
    return verdict, next(iter(verdict.mismatches), None)


def test_faithful_answers_match():
    for probe in probes():
        verdict, found = judged(probe, answered(probe.snapshot, probe.search))
        assert found is None
        assert verdict.pairs["tensorflow-2", "oracle"]["answers"].used == 0


def replaced(answers, row, **values):
    lines = [dict(line) for line in answers.lines]
    lines[row] |= values
    return dataclasses.replace(answers, lines=lines)


CHANGES = {
    "answers/tokens": lambda right: replaced(right, 1, tokens=[5, 5, 5, 5]),
    "answers/finished": lambda right: replaced(
        right, 0, finished=not right.lines[0]["finished"]
    ),
    "answers/scores": lambda right: replaced(right, 2, score=right.lines[2]["score"] - 1e-6),
    "answers/answer": lambda right: replaced(right, 2, answer=right.lines[2]["answer"] + " "),
    "answers/reference": lambda right: replaced(right, 0, reference="w9"),
    "answers/source": lambda right: scored(right.lines[:2]),
    "answers/bleu": lambda right: dataclasses.replace(
        right, bleu=right.bleu | {"score": right.bleu["score"] + 0.01}
    ),
    "answers/exact_share": lambda right: dataclasses.replace(right, exact_share=0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_answer_is_found_in_its_place(name):
    probe = probes()[0]
    verdict, found = judged(probe, CHANGES[name](answered(probe.snapshot, probe.search)))
    assert (found.place.tensor, found.rung, found.place.step) == (name, "answers", 7)
    assert "tensorflow-2" in verdict.departing()
    if name not in ("answers/answer", "answers/reference", "answers/source"):
        assert verdict.departing() == ["tensorflow-2"]


def test_a_tie_that_is_broken_the_other_way_is_found():
    ties = probes()[2]
    other = answered(ties.snapshot, ties.search)
    last = PAIRS.model.target_vocabulary_size - 1
    lines = [line | {"tokens": [last], "answer": f"w{last}"} for line in other.lines]
    other = scored(lines)
    _, found = judged(ties, other)
    assert found.place.tensor == "answers/tokens"
    assert found.values == {"tensorflow-2": last, "oracle": 4}


def test_an_answer_that_is_longer_than_allowed_is_found():
    probe = probes()[1]
    other = replaced(answered(probe.snapshot, probe.search), 0, tokens=[4] * 7)
    _, found = judged(probe, other)
    assert "an answer of 7 tokens; allowed: 6" in found.problem


def test_what_is_resumed_in_single_precision_is_not_moved():
    for dtype, moved in (("float32", 0.0), ("float64", 2.0)):
        table = np.zeros((3, 4), dtype)
        assert beyond_limits({"weight/embed/table": table})["weight/embed/table"].max() == moved


def test_every_probe_ends_answers_as_it_says():
    usual, limit, ties, full = (
        answered(probe.snapshot, probe.search).lines for probe in probes()
    )
    assert [(len(line["tokens"]), line["finished"]) for line in limit] == [(6, False)] * 3
    assert [line["tokens"] for line in ties] == [[4]] * 3
    assert [(set(line["tokens"]), line["finished"]) for line in full] == [({4}, False)] * 3
    assert len(usual) == 3
