"""Validation while training: when it is done, what it says, and which checkpoint is best."""

import json
import re
import shutil

import asynchronous_side
import numpy as np
import pytest
from conftest import TINY_SEQ2SEQ, ended, flags
from oracle_side import OracleStrategy, text
from test_training_loop import PER_EPOCH, SPEC, scalars, steps_saved, train

from parity.twins.cli.options import TrainOptions
from parity.twins.processes.group import ProcessGroup
from parity.twins.training.checkpoint import (
    best_checkpoint,
    keep_best,
    load_checkpoint,
    newest_checkpoint,
)
from parity.twins.training.evaluate import Validation
from parity.twins.training.events import EventWriter
from parity.twins.training.loss_table import read_validations
from parity.twins.training.strategy import Build
from parity.twins.training.summary import Summary


@pytest.fixture(scope="module")
def runs(frameworks, pairs, cache, tmp_path_factory):
    """Train both sides on pairs, three steps to an epoch, and end within the second one."""
    folder = tmp_path_factory.mktemp("runs")
    given = flags(**TINY_SEQ2SEQ, data=pairs, cache=cache, dtype="float64", steps=5)
    jobs = {
        name: each.train(*given, f"--out={folder / name}") for name, each in frameworks.items()
    }
    said = {}
    for name, job in jobs.items():
        errors = ended(job)
        said[name] = errors.splitlines()
    return folder, said


def test_a_log_tells_the_whole_training(runs):
    folder, said = runs
    for name, lines in said.items():
        after = lines[next(n for n, line in enumerate(lines) if line.startswith(name)) :]
        speed = r"[\d,]+ tokens/s"
        best = r"\(best BLEU [\d.]+, in checkpoints/step-0000000[35]\.safetensors\)"
        sample = r"  (w\d+ ?)+ -> (w\d+ ?|<unk> ?)* ?\(reference: (w\d+ ?)+\)"
        patterns = [
            rf"{name}: step 3 of 5, loss \d\.\d{{4}}, perplexity [\d.]+, {speed}, \d+ s left",
            rf"epoch 1: validation perplexity [\d.]+, BLEU [\d.]+; trained at {speed}, .*",
            rf"{name}: step 5 of 5, loss \d\.\d{{4}}, perplexity [\d.]+, {speed}",
            r"step 5: validation perplexity [\d.]+, BLEU [\d.]+; .*",
            rf"answers at step [35]; {re.escape(str(folder / name / 'samples.txt'))} has .*:",
            *[sample] * 3,
            rf"{re.escape(str(folder / name))}: 5 steps; loss \d\.\d{{4}}; validation "
            rf"perplexity [\d.]+ {best}; {speed}",
        ]
        assert len(after) == len(patterns), after
        for line, pattern in zip(after, patterns, strict=True):
            assert re.fullmatch(pattern, line), line


def test_both_sides_say_the_same_answers_and_perplexities(runs):
    folder, said = runs
    samples, values = [], []
    for name, lines in said.items():
        samples.append((folder / name / "samples.txt").read_text().splitlines())
        shown = [line.strip() for line in lines if " -> " in line]
        best = best_checkpoint(folder / name / "checkpoints").step
        start = f"step {best}: "
        assert shown == [
            line.removeprefix(start) for line in samples[-1] if line.startswith(start)
        ]
        values.append(re.findall(r"validation perplexity ([\d.]+)", " ".join(lines)))
    assert samples[0] == samples[1]
    assert len(samples[0]) == 6
    assert len({line.split(": ")[1].split(" -> ")[0] for line in samples[0]}) == 3
    assert values[0] == values[1]
    assert len(values[0]) == 3


def test_answers_are_not_kept_twice_by_a_run_that_ended_while_it_wrote_them(
    runs, frameworks, pairs, cache, tmp_path
):
    """The table of validations is written last: without it, all is done again."""
    folder, _ = runs
    out = shutil.copytree(folder / "tensorflow", tmp_path / "out")
    written = (out / "samples.txt").read_text()
    (out / "validations.csv").unlink()
    (out / "checkpoints" / "step-00000005.safetensors").unlink()
    given = flags(**TINY_SEQ2SEQ, data=pairs, cache=cache, dtype="float64", steps=5)
    assert "epoch 1: " in ended(
        frameworks["tensorflow"].train(*given, f"--resume={out}", f"--out={out}")
    )
    assert (out / "samples.txt").read_text() == written
    assert [row.step for row in read_validations(out / "validations.csv")] == [3, 5]


def test_the_last_step_is_validated_wherever_it_is(tmp_path):
    strategy, summary = train(tmp_path, steps=6)
    assert list(scalars(tmp_path)["perplexity/valid"]) == [4, 6]
    assert len(summary.valid_perplexity) == 2
    assert strategy.done == 6
    # not twice where the last step ends an epoch, nor again what was validated before
    _, summary = train(tmp_path, resume="", steps=8)
    assert list(scalars(tmp_path)["perplexity/valid"]) == [4, 6, 8]
    assert len(summary.valid_perplexity) == 3


def test_none_of_the_batches_is_no_evaluation(tmp_path, capsys):
    _, summary = train(tmp_path, evaluate=0)
    assert summary.valid_perplexity == []
    assert summary.test_perplexity is None
    assert not (tmp_path / "checkpoints/best.json").exists()
    assert "validation" not in capsys.readouterr().err


# the best checkpoint


def spoiled_after(first):
    """Return what spoils the weights before each step from `first` on, a little more each."""

    def before(strategy, step):
        if step >= first:
            name = "weight/softmax/bias"
            strategy.held[name] = strategy.held[name] + np.arange(7) * float(step)

    return before


def test_the_best_checkpoint_stays_beside_the_newest_two(tmp_path, capsys):
    spec = SPEC.replace(epochs=5)
    _, summary = train(tmp_path, spec, before=spoiled_after(8))
    values = summary.valid_perplexity
    assert values.index(min(values)) == 1, values
    assert steps_saved(tmp_path) == [8, 16, 20]
    best = best_checkpoint(tmp_path / "checkpoints")
    assert (best.step, best.perplexity) == (8, min(values))
    assert newest_checkpoint(tmp_path / "checkpoints", []).step == 20
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{tmp_path}: 20 steps; loss ")
    assert f"(lowest {min(values):.3f}, in checkpoints/step-00000008.safetensors)" in last


def test_the_best_weights_are_tested_unless_the_newest_are_asked_for(tmp_path, capsys):
    spec, evaluates = SPEC.replace(epochs=5), {"resume": "", "evaluate_only": True}
    found = {}
    for newest, step in ((False, 8), (True, 20)):
        out = tmp_path / str(newest)
        strategy, summary = train(out, spec, before=spoiled_after(8), newest=newest)
        saved = load_checkpoint(out / f"checkpoints/step-{step:08d}.safetensors")
        np.testing.assert_equal(dict(strategy.held), dict(saved.snapshot))
        assert summary.tested_step == step
        capsys.readouterr()
        train(out, spec, newest=newest, **evaluates)
        which = "the newest" if newest else "the best by validation (perplexity"
        assert f"step {step}, {which}" in capsys.readouterr().err
        values = json.loads((out / "evaluation.json").read_text())
        assert (values["step"], values["perplexity"]["test"]) == (step, summary.test_perplexity)
        found[newest] = summary.test_perplexity
    assert found[False] < found[True]


def test_the_best_is_known_after_resuming_and_replaced_by_a_better_one(tmp_path):
    train(tmp_path, SPEC.replace(epochs=4), before=spoiled_after(8))
    assert steps_saved(tmp_path) == [8, 12, 16]
    train(tmp_path, SPEC.replace(epochs=5), resume="", before=spoiled_after(0))
    assert steps_saved(tmp_path) == [8, 16, 20]
    keep_best(tmp_path / "checkpoints", 20, 0.5)
    assert steps_saved(tmp_path) == [16, 20]
    assert best_checkpoint(tmp_path / "checkpoints").step == 20


def test_going_back_forgets_a_best_that_lies_ahead(tmp_path):
    train(tmp_path, steps=8)
    folder = tmp_path / "checkpoints"
    assert best_checkpoint(folder).step in (4, 8)
    keep_best(folder, 8, 1e-3)
    assert best_checkpoint(folder).step == 8
    train(tmp_path, resume=str(folder / "step-00000004.safetensors"), steps=5)
    assert best_checkpoint(folder).step == 5


def test_another_run_forgets_the_best_of_the_old_one(tmp_path):
    train(tmp_path)
    keep_best(tmp_path / "checkpoints", 8, 1e-3)
    train(tmp_path, SPEC.replace(seed=8), resume="", allow_change=True, steps=9)
    assert best_checkpoint(tmp_path / "checkpoints").step == 9
    train(tmp_path, steps=3, overwrite=True)
    assert best_checkpoint(tmp_path / "checkpoints").step == 3
    assert steps_saved(tmp_path) == [3]
    train(tmp_path, steps=3, overwrite=True, evaluate=0)
    assert not (tmp_path / "checkpoints" / "best.json").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_or_not_there_is_never_the_best(tmp_path, value):
    train(tmp_path, steps=5, checkpoint_every=4)
    folder = tmp_path / "checkpoints"
    keep_best(folder, 4, 1.0)
    keep_best(folder, 5, value)
    keep_best(folder, 3, 0.5)  # of which there is no checkpoint
    assert best_checkpoint(folder).step == 4


# patience


def test_patience_ends_a_training_that_resumes_to_nothing_or_to_more(tmp_path, capsys):
    spec = SPEC.replace(epochs=9, patience=2)
    strategy, summary = train(tmp_path, spec, before=spoiled_after(8))
    assert best_checkpoint(tmp_path / "checkpoints").step == 8
    assert (strategy.done, summary.tested_step) == (16, 8)
    said = capsys.readouterr().err
    line = "stopped at step 16: no better validation for 2 epochs (--patience)"
    assert said.count(line) == 1
    written = (tmp_path / "summary.json").read_bytes()
    nothing, _ = train(tmp_path, spec, resume="")
    assert nothing.done == 0
    assert (
        "16 steps; nothing is left to train: --patience is 2, and a" in capsys.readouterr().err
    )
    assert (tmp_path / "summary.json").read_bytes() == written
    more, _ = train(tmp_path, spec.replace(patience=3), resume="", before=spoiled_after(0))
    assert more.done == 4
    rest, _ = train(tmp_path, spec.replace(patience=0), resume="", before=spoiled_after(0))
    assert rest.done == 16
    assert "stopped at" not in capsys.readouterr().err.split("resumed at step 20")[1]


def test_patience_ends_a_training_of_asynchronous_workers(tmp_path):
    def spoil(strategy, worker):
        if strategy.computed >= 8:
            bias = strategy.held["weight/softmax/bias"]
            strategy.held["weight/softmax/bias"] = bias + np.arange(7) * 9.0

    asynchronous_side.train(
        tmp_path, asynchronous_side.SPEC.replace(epochs=9, patience=1), replicas=2, before=spoil
    )
    folder = tmp_path / "checkpoints"
    assert (best_checkpoint(folder).step, newest_checkpoint(folder, []).step) == (4, 8)


@pytest.mark.parametrize(("step", "ends"), [(11, False), (12, True)])
def test_every_rank_ends_when_rank_0_has_no_patience_left(tmp_path, step, ends):
    """Rank 0 alone sees the folder, and the others stop where it does."""
    sent = []

    class Rank(ProcessGroup):
        def broadcast(self, tensors):
            if tensors is not None:
                sent.append(tensors)
            return sent[0]

    spec, found = SPEC.replace(patience=2), []
    train(tmp_path / "0", spec, steps=4)
    for rank in (0, 1):
        group = Rank()
        group.rank = rank
        strategy = OracleStrategy(spec, Build(2, group=group))
        options = TrainOptions(out=tmp_path / str(rank))
        summary = Summary(strategy.framework, 2, "float64")
        given = strategy, text(spec, PER_EPOCH), options, summary, EventWriter(None, 0)
        validation = Validation(*given, lambda: None)
        validation.resume(step, changed=False)
        found.append(validation.ends_early(step, 36))
    assert found == [ends, ends]
