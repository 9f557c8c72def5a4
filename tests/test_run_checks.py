"""`parity run` on both frameworks: what its checks of whole runs find, and what they leave."""

import json

import pytest
from conftest import TINY

from parity.base.errors import NumericFailure
from parity.report.terminal import report_text
from parity.trace.reader import Trace
from parity.twins.cli.options import RunOptions
from parity.twins.compare import run_tables
from parity.twins.compare.values import report_values
from parity.twins.faults.fault import Edit
from parity.twins.faults.listing import parts_of_fault
from parity.twins.run import compare_while_training
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.proof import prove
from parity.twins.spec.spec import preset

THOROUGH = pytest.mark.thorough
SPEC = preset("language-model", "tiny").replace(
    **{name: value for name, value in TINY.items() if name != "replicas"} | {"decay": 0.5},
    optimizer="adam",
)
PAIRS = preset("seq2seq", "tiny").replace(
    embedding_size=5,
    hidden_size=6,
    batch_size=7,
    epochs=2,
    source_vocabulary_size=40,
    target_vocabulary_size=40,
    source_segmenter="spaces",
    target_segmenter="spaces",
    optimizer="adam",
)


@pytest.fixture
def run(frameworks, text, pairs, tmp_path):
    """Return a function that runs both sides, with a fault planted in one of them."""

    def run(spec=SPEC, fault=None, side="tensorflow", edits=(), **values):
        given = {
            "network": spec.network,
            "preset": "tiny",
            "data": text if spec.network == "language-model" else pairs,
            "cache": tmp_path / "cache",
            "out": tmp_path / "out",
            "replicas": (2,),
            "steps": 3,
            "dtype": ("float64",),
            "decode": 0,
        }
        options = RunOptions(**given | values)
        planted = {side: parts_of_fault(fault)[0].edits[side] if fault else edits}
        outcome = prove(PlannedRun(spec, options, frameworks, planted))
        return report_values(outcome, "tiny", "")

    return run


@pytest.mark.torch
@pytest.mark.thorough
@pytest.mark.parametrize("spec", [SPEC, PAIRS], ids=["text", "pairs"])
def test_a_witness_is_compared_beside_the_sides(run, spec):
    report = run(spec, checks=("none",), witness="pytorch", evaluate=0, dtype=("float32",))
    assert report["verdict"] == "match", report_text(report)
    found = report["runs"][0]["rungs"]["witness"]
    assert 0 < found["used"] < 1
    pairs = {(pair["a"], pair["b"]) for pair in found["pairs"]}
    assert pairs == {("paddle-2", "pytorch"), ("pytorch", "oracle, one step")}
    assert "PyTorch trained the same steps" in " ".join(report_text(report).split())


@pytest.mark.thorough
def test_answers_are_compared_in_every_way_that_they_can_end(run, tmp_path):
    report = run(PAIRS, steps=2, checks=("answers",), replicas=(1, 2))
    assert report["verdict"] == "match", report_text(report)
    (found,) = report["runs"]
    assert found["rungs"]["answers"]["used"] < 0.5
    assert set(found["unchecked"]) == {
        "evaluation",
        "resume",
        "repeat",
        "untraced",
        "counting",
    }
    answers = [tmp_path / "out" / "answers" / str(number) for number in range(4)]
    ends = []
    for folder in answers:
        lines = (folder / "paddle-1" / "answers.jsonl").read_text().splitlines()
        assert len(lines) == 8
        ends.append([json.loads(line)["finished"] for line in lines])
    assert not any(ends[2] + ends[3])


def test_a_long_run_is_repeated_in_part(run, tmp_path, monkeypatch):
    for module in (compare_while_training, run_tables):
        monkeypatch.setattr(module, "REPEATED_STEPS", 2)
    report = run(checks=("repeat",), throughput=False, keep_traces=True)
    assert report["verdict"] == "match", report_text(report)
    assert "repeat, the first 2 steps were run again" in " ".join(report_text(report).split())
    assert report["runs"][0]["rungs"]["repeat"]["used"] == 0
    folders = (tmp_path / "out" / "traces" / "float64").iterdir()
    steps = {folder.name: len(dict(Trace(folder).steps())) for folder in folders}
    sides = "paddle-2", "tensorflow-2"
    assert steps == dict.fromkeys(sides, 3) | {f"{side}-repeated": 2 for side in sides}


_STEP = "tf_impl/strategies/synchronous_base.py"
_RUN_STEP = "    def _run_step(self, inputs, state, learning_rate, record):\n"
_EVALUATE = "parity/twins/training/evaluate.py"
# What is wrong only where nothing is recorded, in TensorFlow.
UNRECORDED = {"checks": ("untraced", "counting"), "dtype": ("float32",)}
# What acts on values alone that no early step reaches.
LIMITED = {
    "checks": ("resume",),
    "dtype": ("float64", "float32"),
    "steps": 2,
    "throughput": False,
}
_STATELESS = Edit(
    "parity/twins/training/loop.py",
    "state if carries else None,",
    "state if carries and self.options.trace is not None else None,",
)
# mistake -> the edit, how it is run, and the rung and the tensor where it must be found
MISTAKES = {
    "no rate after the sixth step": (
        Edit(
            _STEP,
            _RUN_STEP,
            f"{_RUN_STEP}        self._taken = getattr(self, '_taken', 0) + (not record)\n"
            "        learning_rate *= self._taken <= 6\n",
        ),
        UNRECORDED,
        "untraced: losses.csv/loss",
    ),
    "checkpoints without the recurrent state": (
        _STATELESS,
        UNRECORDED,
        "untraced: checkpoints",
    ),
    "a training that fails on its own checkpoint": (
        _STATELESS,
        # the first checkpoint stays the best
        UNRECORDED | {"spec": SPEC.replace(learning_rate=1e-30), "checks": ("untraced",)},
        "untraced: checkpoints",
    ),
    "the test text's perplexity is of the validation text": (
        Edit(_EVALUATE, 'least = self._perplexity("test"', 'least = self._perplexity("valid"'),
        UNRECORDED,
        "untraced: perplexity/test",
    ),
    "of all batches the last is not evaluated": (
        Edit(
            _EVALUATE, "return list(range(batches))", "return list(range(batches - 1)) or [0]"
        ),
        UNRECORDED,
        "untraced: perplexity/valid",
    ),
    "the worst checkpoint is kept as the best": (
        Edit("parity/twins/training/checkpoint.py", "quality >= found.", "quality <= found."),
        UNRECORDED,
        "counting: checkpoints/best.json/step",
    ),
    "a cell state is clipped at 3": (
        Edit(
            "tf_impl/kernels.py",
            "new_c = f * c + i * g",
            "new_c = tf.clip_by_value(f * c + i * g, -3.0, 3.0)",
        ),
        LIMITED,
        "resume: forward/lstm_0/hidden",
    ),
    "a loss is clipped at 16 nats": (
        Edit("tf_impl/kernels.py", "return losses, g", "return tf.minimum(losses, 16.0), g"),
        LIMITED,
        "resume: forward/token_loss",
    ),
    "a loss is what softmax tells beyond 64 nats": (
        Edit("paddle_impl/layers.py", "_LARGEST_LOSS = 63.0", "_LARGEST_LOSS = 1e30"),
        LIMITED,
        "resume: forward/token_loss",
    ),
    "embeddings are scaled down to a norm of 1": (
        Edit(
            "tf_impl/layers.py",
            "return tf.gather(table, tokens)",
            "return tf.gather(tf.clip_by_norm(table, 1.0, axes=[1]), tokens)",
        ),
        LIMITED,
        "resume: forward/embedded",
    ),
    "a decoder keeps the weights of its first use": (
        Edit(
            _STEP,
            "        self._decoder.load(self.snapshot())\n",
            "            self._decoder.load(self.snapshot())\n",
        ),
        {"spec": PAIRS, "steps": 1, "checks": ("answers",), "dtype": ("float32",)},
        "answers: answers.jsonl",
    ),
}
QUICK = "no rate after the sixth step", "a loss is what softmax tells beyond 64 nats"


@pytest.mark.parametrize(
    "mistake",
    [name if name in QUICK else pytest.param(name, marks=THOROUGH) for name in MISTAKES],
)
def test_what_no_recorded_step_shows_is_found(run, tmp_path, mistake):
    edit, given, expected = MISTAKES[mistake]
    side = "paddle" if edit.file.startswith("paddle_impl") else "tensorflow"
    report = run(side=side, edits=(edit,), **given)
    first = report["first_mismatch"]
    assert first is not None, report_text(report)
    assert f"{first['rung']}: {first['tensor']}" == expected, first["story"]
    assert f"{side}-2" in first["blame"]
    if given is LIMITED:  # those of the next precision, which had begun, were not compared
        assert not (tmp_path / "out" / "traces" / "float32").exists()


def test_a_side_with_another_number_of_real_tokens_is_named(run):
    """It takes <unk>, whose id is 0, for padding."""
    file, begin = "tf_impl/networks.py", '    begin_layer("embed")\n    tokens ='
    lengths = '    batch["lengths"] = tf.math.count_nonzero(batch["tokens"], axis=1)\n'
    edit = Edit(file, begin, f"{lengths}{begin}")
    given = {"edits": (edit,), "checks": ("none",), "throughput": False}
    first = run(SPEC.replace(vocabulary_size=8), **given)["first_mismatch"]
    assert (first["tensor"], first["step"]) == ("forward/logits", 0)
    assert first["problem"] == "shape [22, 8] in tensorflow-2, [7, 5, 8] in the oracle"
    assert "only tensorflow-2 differs" in first["blame"]


def test_a_side_that_reads_other_ids_does_not_read_the_other_sides_cache(run, tmp_path):
    report = run(fault="vocabulary-reversed", checks=("none",), throughput=False, steps=1)
    first = report["first_mismatch"]
    assert (first["rung"], first["tensor"]) == ("batch", "batch/tokens")
    kept = tmp_path / "out" / "traces" / "float64"
    for side in ("paddle-2", "tensorflow-2"):  # the wrong step of either
        assert Trace(kept / side).read(0)["batch/tokens"].size


SWAPPED = "lstm-gates-i-f"


def test_a_side_that_fails_after_a_mismatch_leaves_the_mismatch(run):
    """With such a learning rate, the second step is not finite.

    Adam's first step is of about the learning rate in every weight, and so all products of two
    weights are infinite, whatever kernels multiply them.
    """
    wild = SPEC.replace(learning_rate=1e38)
    report = run(wild, SWAPPED, dtype=("float32",), replicas=(1,))
    first = report["first_mismatch"]
    assert (first["step"], first["tensor"]) == (0, "forward/lstm_0/hidden")
    assert first["growth"]["ended"] is not None
    assert "nothing was measured after step 0: " in report_text(report)
    assert report["verdict"] == "mismatch"


def test_a_training_that_is_not_finite_ends_the_run(run):
    wild = SPEC.replace(learning_rate=1e37, clip_norm=1e3, optimizer="sgd")
    with pytest.raises(NumericFailure, match=r"step .*replica|replica.*, step"):
        run(wild, dtype=("float32",), steps=7, throughput=False)
