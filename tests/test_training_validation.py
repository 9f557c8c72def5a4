"""Validation while training: when it is done, what it says, and which checkpoint is best."""

import re

import numpy as np
import pytest
from conftest import TINY_SEQ2SEQ, flags
from test_training_loop import SPEC, scalars, steps_saved, train

from parity.twins.training.checkpoint import best_checkpoint, keep_best, newest_checkpoint


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
        status, _, errors = job.wait()
        assert status == 0, errors
        said[name] = errors.splitlines()
    return folder, said


def test_a_log_tells_the_whole_training(runs):
    folder, said = runs
    for name, lines in said.items():
        after = lines[next(n for n, line in enumerate(lines) if line.startswith(name)) :]
        speed = r"[\d,]+ tokens/s"
        best = r"\(lowest [\d.]+, in checkpoints/step-0000000[35]\.safetensors\)"
        sample = r"  (w\d+ ?)+ -> (w\d+ ?|<unk> ?)* ?\(reference: (w\d+ ?)+\)"
        patterns = [
            rf"{name}: step 3 of 5, loss \d\.\d{{4}}, perplexity [\d.]+, {speed}, \d+ s left",
            rf"epoch 1: validation perplexity [\d.]+; trained at {speed}, validated in .*",
            *[sample] * 3,
            rf"{name}: step 5 of 5, loss \d\.\d{{4}}, perplexity [\d.]+, {speed}",
            r"step 5: validation perplexity [\d.]+; .*",
            *[sample] * 3,
            rf"{re.escape(str(folder / name))}: 5 steps; loss \d\.\d{{4}}; validation "
            rf"perplexity [\d.]+ {best}; {speed}",
        ]
        assert len(after) == len(patterns), after
        for line, pattern in zip(after, patterns, strict=True):
            assert re.fullmatch(pattern, line), line


def test_both_sides_say_the_same_answers_and_perplexities(runs):
    _, said = runs
    samples, values = [], []
    for lines in said.values():
        samples.append([line for line in lines if " -> " in line])
        values.append(re.findall(r"validation perplexity ([\d.]+)", " ".join(lines)))
    assert samples[0] == samples[1]
    assert len(samples[0]) == 6
    assert len({line.split(" -> ")[0] for line in samples[0]}) == 3
    assert values[0] == values[1]
    assert len(values[0]) == 3


def test_the_last_step_is_validated_wherever_it_is(tmp_path):
    strategy, summary = train(tmp_path, steps=6)
    assert list(scalars(tmp_path)["perplexity/valid"]) == [4, 6]
    assert len(summary.valid_perplexity) == 2
    assert strategy.done == 6
    # not twice where the last step ends an epoch
    _, summary = train(tmp_path, resume="", steps=8)
    assert len(summary.valid_perplexity) == 1


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
