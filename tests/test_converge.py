"""`parity converge` with real sides: equal ones, and one with a planted difference."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
from functools import partial

import pytest
from browser import cells, lines
from conftest import TINY, assert_one_line, flags, start

from parity.base.errors import NumericFailure
from parity.base.text import verified, with_checksum
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.cli.options import ConvergeOptions
from parity.twins.converge.converging import EQUIVALENT, NOT_SHOWN, converge, train_alike
from parity.twins.converge.report import converge_html, converge_text, verdict_text
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Published
from parity.twins.spec.spec import Spec, preset
from parity.twins.spec.strategies import StrategySettings
from parity.twins.trace.side import TrainedSide

pytestmark = pytest.mark.thorough

SPEC = {name: value for name, value in TINY.items() if name != "replicas"} | {
    "dtype": "float64"
}
OF_PAIRS = {
    "source_vocabulary_size": 40,
    "target_vocabulary_size": 40,
    "embedding_size": 5,
    "hidden_size": 6,
    "batch_size": 7,
    "source_segmenter": "spaces",
    "target_segmenter": "spaces",
    "epochs": 2,
    "dtype": "float64",
}


@pytest.fixture(scope="module")
def starters(frameworks):
    """Return how the sides' trainings are started: by the session's fork servers."""
    return {name: server.side for name, server in frameworks.items()}


@pytest.fixture(scope="module")
def options_in(text, cache):
    """Return a function from a folder for --out to options."""
    return partial(ConvergeOptions, data=text, cache=cache, seeds=2, replicas=2)


@pytest.fixture
def options(options_in, tmp_path):
    return options_in(out=tmp_path / "out")


def language_model(**values) -> Spec:
    return preset("language-model", "tiny").replace(**SPEC | values)


@pytest.fixture(scope="module")
def compared(starters, options_in, tmp_path_factory):
    """Return what is found of the sides as they are, once."""
    options = options_in(out=tmp_path_factory.mktemp("compared"))
    return converge(language_model(), options, "parity converge <x>", starters)


@pytest.fixture(scope="module")
def epoch(starters, options_in, tmp_path_factory):
    """Return options whose trainings of one epoch are in --out already, and what was found."""
    options = options_in(out=tmp_path_factory.mktemp("epoch"))
    return options, converge(language_model(epochs=1), options, "", starters)


def with_flags(starter, *more):
    """Return a starter whose trainings get more flags, of which the last ones count."""
    return lambda flags, log: starter([*flags, *more], log)


def test_sides_that_compute_the_same_are_equivalent(starters, compared):
    found = compared
    assert found["verdict"] == EQUIVALENT
    assert list(found["quantities"]) == ["test perplexity", "best validation perplexity"]
    assert found["steps"] == 15
    for each in found["quantities"].values():
        (pair,) = each["pairs"]
        assert abs(pair["difference"]) < 1e-9  # in float64
        paddle, tensorflow = (each["sides"][side]["values"] for side in starters)
        assert paddle == pytest.approx(tensorflow, rel=1e-9)
        assert len(set(paddle)) == 2  # each seed has another result
    curves = [runs["1"]["valid_perplexity"] for runs in found["runs"].values()]
    assert [len(curve) for curve in curves] == [3, 3]
    best = found["quantities"]["best validation perplexity"]["sides"]["paddle"]["values"]
    assert best[0] == min(curves[0])


def test_a_finished_training_is_not_repeated(starters, epoch, tmp_path):
    (options, first), spec = epoch, language_model(epochs=1)
    nothing = dict.fromkeys(starters, pytest.fail)  # called if anything is started
    again = converge(spec, options, "", nothing)
    assert again["quantities"] == first["quantities"]
    assert all(each["reused"] for runs in again["runs"].values() for each in runs.values())
    assert "4 trainings were already in --out" in converge_text(again)
    out = shutil.copytree(options.out, tmp_path / "out")
    more = dataclasses.replace(options, seeds=3, out=out)
    third = converge(spec, more, "", starters)
    assert [each["reused"] for each in third["runs"]["paddle"].values()] == [True, True, False]
    other = converge(spec.replace(learning_rate=0.06), more, "", starters)
    assert not any(each["reused"] for runs in other["runs"].values() for each in runs.values())


def test_an_interrupted_training_goes_on_from_its_checkpoint(starters, options):
    spec = language_model(epochs=2)
    whole = converge(spec, options, "", starters)
    begins = {"paddle-1": 5, "paddle-2": 10, "tensorflow-1": 5, "tensorflow-2": 0}
    for name, step in begins.items():  # as a kill would leave them
        folder = options.out / "runs" / name
        note = verified((folder / "training.json").read_bytes())
        note["summary"] = None
        (folder / "training.json").write_text(with_checksum(note))
        for path in folder.glob("checkpoints/step-*"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
    again = converge(spec, options, "", starters)
    assert again["quantities"] == whole["quantities"]
    curves = [
        {
            name: {seed: each["valid_perplexity"] for seed, each in runs.items()}
            for name, runs in found["runs"].items()
        }
        for found in (again, whole)
    ]
    assert curves[0] == curves[1]
    for name, step in begins.items():
        log = (options.out / "runs" / name / "log").read_text()
        steps = [int(each) for each in re.findall(r"step (\d+) of 10", log)]
        assert min(steps, default=11) > step, log
        assert (f"resumed at step {step}," in log) == (step > 0)


def strategies(options, *words, **settings):
    """Return the options with strategies and their settings."""
    given = StrategySettings(**settings)
    return dataclasses.replace(options, strategy=words, settings=given)


def test_strategies_are_sides_and_only_those_that_train_alike_are_judged(starters, options):
    words = ("tensorflow=towers", "tensorflow=mirrored", "tensorflow=asynchronous")
    chosen = strategies(options, *words, schedule="1", staleness=3)
    found = converge(language_model(epochs=2), chosen, "", starters)
    names = ["paddle", *(word.replace("=", " ") for word in words)]
    assert list(found["runs"]) == names
    for each in found["quantities"].values():
        for pair in each["pairs"]:
            is_asynchronous = "tensorflow asynchronous" in (pair["a"], pair["b"])
            assert pair["same_training"] == (not is_asynchronous)
            assert (abs(pair["difference"]) < 1e-9) == (not is_asynchronous)
    assert found["verdict"] == EQUIVALENT
    text = converge_text(found)
    assert "; schedule=1 staleness=3" in " ".join(text.split())
    assert "TF towers - TF" in text
    assert len(re.findall("another training(?:  |$)", text, re.MULTILINE)) == 6
    # another staleness: the synchronous trainings need not be repeated
    staler = strategies(options, *words, schedule="1", staleness=1)
    again = converge(language_model(epochs=2), staler, "", starters)
    reused = {name: runs["1"]["reused"] for name, runs in again["runs"].items()}
    assert reused == {name: "asynchronous" not in name for name in names}
    assert (
        again["runs"]["tensorflow towers"]["1"] != again["runs"]["tensorflow asynchronous"]["1"]
    )


def test_sides_that_train_alike_are_told_from_others():
    def side(framework, strategy, synchronous=True, **settings):
        given = StrategySettings(**settings)
        return TrainedSide(framework, strategy, synchronous=synchronous, settings=given)

    towers, layers = side("tensorflow", "towers"), side("paddle", "layers", stages=2)
    alike = side("tensorflow", "average-gradients", shard_weights="equal")
    exact = side("tensorflow", "average-gradients", shard_weights="tokens")
    stale, staler = (
        side("paddle", "asynchronous", False, schedule="1", staleness=n) for n in (1, 3)
    )
    other = side("tensorflow", "asynchronous", False, schedule="1", staleness=1)
    assert train_alike(towers, layers)
    assert train_alike(towers, exact)
    assert train_alike(stale, other)
    for a, b in ((towers, alike), (exact, alike), (towers, stale), (stale, staler)):
        assert not train_alike(a, b)
        assert not train_alike(b, a)


def test_without_two_sides_that_train_alike_there_is_no_verdict(starters, epoch):
    chosen = strategies(epoch[0], "tensorflow=asynchronous", schedule="1")
    found = converge(language_model(epochs=1), chosen, "", starters)
    assert found["verdict"] is None
    assert converge_text(found).endswith(
        "verdict: none, for no two sides are meant to train in the same way"
    )
    assert 'class=""' in converge_html(found)


def test_a_decoding_network_is_judged_by_its_answers_too(starters, pairs, cache, tmp_path):
    spec = preset("seq2seq", "tiny").replace(**OF_PAIRS)
    options = ConvergeOptions(
        network="seq2seq", data=pairs, cache=cache, out=tmp_path, seeds=2, beam=2
    )
    found = converge(spec, options, "", starters)
    names = ["test perplexity", "best validation perplexity", "test BLEU", "exact answers"]
    assert list(found["quantities"]) == names
    assert found["verdict"] == EQUIVALENT
    for side in starters:
        summary = found["runs"][side]["2"]
        answers = found["quantities"]["exact answers"]["sides"][side]["values"]
        scores = found["quantities"]["test BLEU"]["sides"][side]["values"]
        assert (summary["exact_answers"], summary["bleu"]["score"]) == (answers[1], scores[1])


def test_an_infinite_perplexity_is_told_in_plain_words(starters, options):
    planted = {**starters, "paddle": with_flags(starters["paddle"], "--learning-rate=1e150")}
    with pytest.raises(NumericFailure) as raised:
        converge(language_model(epochs=1), options, "", planted)
    assert str(raised.value).startswith(
        "paddle, seed 1: the test perplexity is infinite or not a number: the training has "
        "diverged; a smaller --learning-rate"
    )


def test_the_published_result_is_quoted_and_compared_only_with_its_own_recipe(
    starters, epoch, text, monkeypatch
):
    options, spec = epoch[0], language_model(epochs=1)
    of_preset = dataclasses.replace(options, preset="zaremba-small")
    found = converge(spec, of_preset, "", starters)
    assert found["published"]["ratio"] is None
    assert (
        "published: test perplexity 115.91 on PTB (TensorFlow's ptb_word_lm.py); "
        "not comparable: the text is not PTB; flags change the preset"
    ) in " ".join(converge_text(found).split())
    # a recipe of this very text
    digest = hashlib.sha256((text / "train.txt").read_bytes()).hexdigest()
    ours = dataclasses.replace(
        NETWORKS["language-model"].presets["tiny"],
        model=spec.model,
        text=spec.text,
        training=spec.training,
        published=Published("this text", digest, 20.0, 10.0, "nobody"),
    )
    monkeypatch.setitem(NETWORKS["language-model"].presets, "ours", ours)
    again = converge(spec, dataclasses.replace(options, preset="ours"), "", starters)
    assert again["published"]["not_comparable"] is None
    mean = again["quantities"]["test perplexity"]["sides"]["paddle"]["mean"]
    assert again["published"]["ratio"]["paddle"] == pytest.approx(mean / 10)
    assert f"ours: Paddle {mean / 10 - 1:+.1%}, TF " in " ".join(converge_text(again).split())


@pytest.mark.browser
def test_the_page_shows_the_tests_and_a_curve_for_each_seed(compared, window, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(converge_html(compared))
    window.look()
    window.open(page)
    assert cells(window, "#tests")[0][:2] == ["test perplexity", "Paddle - TF"]
    assert len(cells(window, "#results")) == 4
    assert [*lines(window, "curves")] == [
        f"{side}, seed {seed}" for side in ("Paddle", "TF") for seed in (1, 2)
    ]


def test_what_too_few_seeds_cannot_show_says_how_many_would():
    pair = {"same_training": True, "shown": False, "seeds_needed": 142}
    values = {
        "verdict": NOT_SHOWN,
        "runs": {"paddle": {"1": {}, "2": {}}},
        "quantities": {"test perplexity": {"pairs": [pair]}},
    }
    said = "not shown by 2 seeds; 142 would show it if the sides do not differ"
    assert verdict_text(values) == said
    for needed in (2, None):  # as many as there were, or beyond any use
        values["quantities"]["test perplexity"]["pairs"] = [pair | {"seeds_needed": needed}]
        assert verdict_text(values).startswith("not shown: the sides differ, or vary, too much")


def command(*words, **environment):
    process = start(["-m", "parity", "converge", *words], env=os.environ | environment)
    printed, errors = process.communicate()
    return process.returncode, printed, errors


def test_the_command_says_so_by_its_status(epoch, text, cache, tmp_path):
    out = shutil.copytree(epoch[0].out, tmp_path / "out")
    words = flags(**SPEC | {"replicas": 2, "epochs": 1}, data=text, cache=cache)
    words += [f"--out={out}", "--seeds=2", f"--json={tmp_path / 'extra.json'}"]
    # all but one are there already
    (out / "runs" / "tensorflow-1" / "training.json").unlink()
    status, printed, errors = command(*words)
    assert status == 0, errors
    assert "3 trainings were already in --out" in printed
    assert printed.endswith("verdict: equivalent\n")
    assert (out / "converge.txt").read_text() == printed
    assert json.loads((out / "converge.json").read_text())["verdict"] == EQUIVALENT
    assert (tmp_path / "extra.json").read_bytes() == (out / "converge.json").read_bytes()
    assert "Learning curves" in (out / "converge.html").read_text()
    # one training again, now with a mistake: Paddle trains it at another rate
    (out / "runs" / "paddle-2" / "training.json").unlink()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --learning-rate=0.9\n')
    python.chmod(0o755)
    status, printed, errors = command(*words, PARITY_PADDLE_PYTHON=str(python))
    assert status == 1, errors
    assert "3 trainings were already in --out" in printed
    assert printed.splitlines()[-1].startswith("verdict: not shown")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--seeds=1"], "--seeds is 1; allowed: >= 2"),
        (["--margin=0"], "--margin is 0.0; allowed: > 0"),
        (["--peers=keras"], "--peers is 'keras'; allowed: pytorch"),
        (["--preset=no"], "--preset is 'no'"),
        (["--replicas=99"], "train: "),
    ],
)
def test_bad_use_is_told_at_once(words, expected, tmp_path, capsys):
    status = main(parity, ["converge", *words, f"--out={tmp_path}"])
    assert expected in assert_one_line(status, capsys.readouterr().err)
