"""Random valid runs: none may be a mismatch, and ten times their rounding must be one."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import FRAMEWORKS, assert_one_line, start

from parity.base.errors import UsageError
from parity.base.text import with_checksum
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.compare.steps import compare_step
from parity.trace.reader import Trace
from parity.trace.rungs import rung_of
from parity.twins.cli.options import SweepOptions
from parity.twins.compare.rounding_bounds import ONE_STEP_TIMES, bounds_of
from parity.twins.compare.run_comparison import RunComparison
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.frameworks import FRAMEWORKS as FRAMEWORK_TABLE
from parity.twins.spec.strategies import StrategySettings
from parity.twins.sweep.random_runs import DrawnRun, draw
from parity.twins.sweep.random_strategies import comparable_choices
from parity.twins.sweep.random_sweep import attempt, sweep
from parity.twins.sweep.results import Sweep, sweep_text, sweep_values

SEED = 1
# Quick runs of both networks in both precisions. In run 4 rounding is amplified within a step,
# and the optimiser's state forgets nearly all of its past.
SLICE = (0, 1, 2, 4, 6, 7, 8, 10, 11, 12, 16, 18)


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> SweepOptions:
    """Return options that keep the traces."""
    return SweepOptions(seed=SEED, out=tmp_path_factory.mktemp("sweep"), keep=True)


@pytest.fixture(scope="module")
def swept(frameworks, options) -> dict:
    """Run the slice; return number -> result."""
    return {n: attempt(draw(SEED, n), frameworks, options) for n in SLICE}


def test_drawn_runs_differ_in_all_that_decides_a_number():
    runs = [draw(3, number) for number in range(60)]
    names = ("optimizer", "dtype", "keep", "clip_norm", "num_layers", "initial_scale")
    for name in (*names, "loss_per"):
        assert len({run.spec.values()[name] for run in runs}) > 1, name
    of_pairs = [run.spec.model for run in runs if run.spec.network == "seq2seq"]
    for name in ("cell", "attention", "input_feeding", "bidirectional"):
        assert len({getattr(model, name) for model in of_pairs}) > 1, name
    of_text = [run.spec.text for run in runs if run.spec.network == "language-model"]
    assert {text.batching for text in of_text} == {"stream", "sentences"}
    assert {run.replicas for run in runs} == {1, 2, 3, 4}
    assert {run.options["evaluate"] for run in runs} == {0, 1, 4}


@pytest.mark.thorough
def test_no_run_of_the_slice_alarms(swept):
    alarms = {n: result["story"] for n, result in swept.items() if result["how"] != "match"}
    assert alarms == {}


@pytest.mark.thorough
def test_the_worst_is_within_what_is_allowed_by_the_stated_margin(swept):
    """Over many runs the bounds leave a margin of 1.7; this slice may use 0.8 of them."""
    found = Sweep(SEED, [], swept).used()
    assert set(found) == {"float64", "float32"}
    for rungs in found.values():
        for rung in ONE_STEP_TIMES:
            assert 0 < rungs[rung]["share"] < 0.8, rung


def multiplied(swept, options) -> dict[tuple[int, str, str], bool]:
    """Return (run, side, tensor) -> whether a multiple of its rounding is flagged in some step.

    Tensors without any rounding are left out.
    """
    found: dict[tuple[int, str, str], bool] = {}
    for number, result in swept.items():
        folder = options.out / "runs" / f"{number:06d}"
        traces = {side: Trace(folder / side) for side in FRAMEWORKS}
        comparison = RunComparison({side: trace.header for side, trace in traces.items()})
        dtype = comparison.spec.training.dtype
        for step in range(result["steps"]):
            recorded = {side: trace.read(step) for side, trace in traces.items()}
            comparison.step(step, recorded)
            for side, rounding in comparison.rounding.items():
                for name, array in recorded[side].items():
                    if rung_of(name) not in ONE_STEP_TIMES:
                        continue
                    exact = rounding.exact[name]
                    error = np.subtract(array, exact, dtype=np.float64)
                    if not error.any():
                        continue
                    worse = {name: exact + TIMES[rung_of(name)] * error}
                    bounds = bounds_of(dtype, rounding)
                    of_oracle = {name: exact}
                    compared = compare_step(worse, of_oracle, (side, ""), step, [name], bounds)
                    key = (number, side, name)
                    found[key] = found.get(key, False) or bool(compared.mismatches)
    return found


# A multiple of the engines' own rounding that must be flagged. The loss and the gradients are
# sums, and their bounds admit every order of the terms: taken one after another, n terms err by
# sqrt(n) / 3 unit roundoffs, several times as much as the blocks in which engines sum.
TIMES = {"forward": 10, "loss": 30, "gradient": 30, "optimizer": 10, "weight": 10}


@pytest.mark.thorough
def test_a_multiple_of_the_rounding_of_a_tensor_is_flagged(swept, options):
    """In at least one of the three to five steps of a run.

    The others are tensors whose rounding happened to be small, mostly those of few numbers, and
    weights whose update is lost below their last place.
    """
    found = multiplied(swept, options)
    by_rung: dict[str, list[bool]] = {}
    for (_, _, name), flagged in found.items():
        by_rung.setdefault(rung_of(name), []).append(flagged)
    shares = {rung: sum(each) / len(each) for rung, each in by_rung.items()}
    assert sum(found.values()) / len(found) > 0.8, shares
    assert min(shares.values()) > 0.7, shares


# strategies

ALL = comparable_choices(parse_strategies(["all"], StrategySettings()))


def used_by(run: DrawnRun) -> set[tuple]:
    """Return (framework, strategy, how shards count) of both sides of a run."""
    return {
        (framework, drawn.name, drawn.settings.get("shard_weights"))
        for framework, drawn in run.strategies.items()
    }


@pytest.fixture(scope="module")
def of_strategies() -> list[DrawnRun]:
    """Return the first quick runs of several replicas that use every strategy between them."""
    left = {
        (framework, entry.name, weights)
        for framework, table in FRAMEWORK_TABLE.items()
        for entry in table.strategies
        if not entry.environment
        for weights in (
            ("tokens", "equal") if "shard_weights" in entry.accepted_settings else (None,)
        )
    }
    runs = []
    for number in range(200):
        run = draw(SEED, number, ALL)
        quick = run.replicas in (2, 3) and run.spec.model.num_layers < 3 and run.steps < 10
        if quick and used_by(run) & left:
            left -= used_by(run)
            runs.append(run)
    assert not left
    return runs


@pytest.mark.thorough
def test_no_run_of_any_strategy_alarms(of_strategies, frameworks, tmp_path):
    options = SweepOptions(seed=SEED, out=tmp_path, strategy=("all",), keep=True)
    results = [attempt(run, frameworks, options) for run in of_strategies]
    assert [result["story"] for result in results if result["how"] != "match"] == []
    for run in of_strategies:
        for framework, drawn in run.strategies.items():
            side = Trace(tmp_path / "runs" / f"{run.number:06d}" / framework).side
            settings = StrategySettings(**drawn.settings)
            assert (side.strategy, side.settings) == (drawn.name, settings)
    assert "tensorflow=mirrored" in sweep_text(Sweep(SEED, ["all"], dict(enumerate(results))))


def test_a_run_trains_the_same_network_whatever_its_strategies(of_strategies):
    for drawn in of_strategies:
        plain = draw(SEED, drawn.number)
        assert (plain.spec, plain.text, plain.replicas) == (
            drawn.spec,
            drawn.text,
            drawn.replicas,
        )
        entry = FRAMEWORK_TABLE["paddle"].strategies.entry(drawn.strategies["paddle"].name)
        synchronous = entry.traits.synchronous
        assert drawn.steps == plain.steps * (1 if synchronous else plain.replicas)


def test_drawn_settings_differ_and_are_those_that_the_strategy_takes():
    drawn = [
        (framework, strategy)
        for number in range(80)
        for framework, strategy in draw(3, number, ALL).strategies.items()
    ]
    for framework, strategy in drawn:
        entry = FRAMEWORK_TABLE[framework].strategies.entry(strategy.name)
        assert set(strategy.settings) == set(entry.accepted_settings)
    for name in (
        "stages",
        "micro_batches",
        "shard_weights",
        "schedule",
        "staleness",
        "processes",
        "servers",
    ):
        values = [strategy.settings.get(name) for _, strategy in drawn]
        assert len(set(values) - {None}) > 1, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("paddle=mirrored", "--strategy is 'paddle=mirrored'; allowed for paddle: all, paral"),
        ("tower", "--strategy is 'tower'; allowed: all, parallel-executor, parallel-do, "),
        ("tensorflow=asynchronous", "allowed: a synchronous strategy of each framework, or an"),
    ],
)
def test_strategies_that_cannot_be_swept_are_one_line(words, message, tmp_path, capsys):
    status = main(parity, ["sweep", f"--strategy={words}", f"--out={tmp_path}"])
    assert message in assert_one_line(status, capsys.readouterr().err)


def test_a_sweep_of_an_earlier_version_is_not_continued(tmp_path):
    of_before = result(0)
    del of_before["strategy"]
    for each in (of_before, result(0) | {"number": float("inf")}):
        (tmp_path / "runs.jsonl").write_text(with_checksum(each) + "\n")
        with pytest.raises(UsageError, match=r"of an earlier version, or is damaged; allowed"):
            sweep(SweepOptions(out=tmp_path, start=1, count=2))


# what is kept, and how it is reported


def result(number: int, how: str = "match", seed: int = SEED, **used: float) -> dict:
    run = dataclasses.replace(draw(seed, number), seed=seed)
    story = "" if how == "match" else "it differs\nthere"
    return {
        **run.to_json(),
        "strategy": "(none)",
        "kernels": "plain",
        "how": how,
        "story": story,
        "used": used,
        "covered": {"new epoch": number, "dropout": 0} if number else {"new epoch": 0},
    }


def test_the_largest_share_of_all_runs_is_reported_with_its_run():
    found = Sweep(SEED, [], {0: result(0, forward=0.1), 4: result(4, forward=0.2)})
    dtypes = {draw(SEED, n).spec.training.dtype for n in (0, 4)}
    assert len(dtypes) == 1, "or this tests nothing"
    assert sweep_values(found)["used"][dtypes.pop()]["forward"] == {"share": 0.2, "run": 4}
    said = sweep_text(found)
    assert re.search(r"^float\d\d +forward +20\.0% +4$", said, re.MULTILINE)
    assert said.endswith("2 runs of seed 1: 0 false alarms")


def test_the_runs_that_met_a_case_are_counted_of_those_that_could():
    found = Sweep(SEED, [], {number: result(number) for number in range(3)})
    assert sweep_values(found)["covered"] == {
        "new epoch": {"runs": 2, "of": 3},
        "dropout": {"runs": 0, "of": 2},
    }
    assert re.search(r"^new epoch +2 of 3\ndropout +0 of 2$", sweep_text(found), re.MULTILINE)


def test_a_false_alarm_is_reported_with_the_command_that_repeats_it():
    found = Sweep(SEED, [], {0: result(0), 7: result(7, "mismatch", forward=1.0)})
    assert sweep_values(found)["false_alarms"] == 1
    said = sweep_text(found)
    assert "run 7: mismatch\n    it differs\n    there\n" in said
    assert "again: python -m parity sweep --seed=1 --only=7 --kernels=plain --keep" in said
    found.chosen_from = ["paddle=layers", "tensorflow=all"]
    assert "--only=7 --strategy=paddle=layers,tensorflow=all --kernels" in sweep_text(found)


def test_a_sweep_continues_where_it_was_interrupted(tmp_path):
    log = tmp_path / "runs.jsonl"
    lines = [with_checksum(result(n)) for n in range(3)]
    log.write_text("\n".join(lines) + '\n{"number": 3, "se')
    options = SweepOptions(out=tmp_path, start=2, count=2)
    assert sorted(sweep(options).results) == [0, 1]
    assert [json.loads(line)["number"] for line in log.read_text().splitlines()] == [0, 1]
    with pytest.raises(UsageError, match=r"has runs of --seed 1; allowed: 2, or another"):
        sweep(dataclasses.replace(options, seed=2))
    with pytest.raises(UsageError, match=r"has runs of --strategy \(none\); allowed: all, or"):
        sweep(dataclasses.replace(options, strategy=("all",)))
    with pytest.raises(UsageError, match=r"--start is 2, but .*cannot be read"):
        sweep(dataclasses.replace(options, out=tmp_path / "new"))


def test_without_hypothesis_one_line_says_so(tmp_path: Path):
    command = (
        "import sys; sys.modules['hypothesis'] = None; "
        "from parity.cli.command_line import main; "
        "from parity.cli.commands import parity; sys.exit(main(parity, sys.argv[1:]))"
    )
    process = start(["-c", command, "sweep", f"--out={tmp_path}"])
    _, errors = process.communicate()
    assert "hypothesis is not installed" in assert_one_line(process.returncode, errors)
