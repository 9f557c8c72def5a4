"""Which sides of a run stand for others, and which a run names as left out."""

import pytest

from parity.base.errors import UsageError
from parity.twins.cli.options import RunOptions
from parity.twins.compare.verdict import RunVerdict
from parity.twins.run.choose_sides import (
    leading_sides,
    resolved,
    sides_of,
    sides_of_strategies,
)
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.proof import run
from parity.twins.run.whole_run_checks import unchecked
from parity.twins.spec.spec import preset
from parity.twins.spec.strategies import StrategySettings

STRATEGIES = ("tensorflow=towers", "tensorflow=mirrored", "tensorflow=asynchronous")


def test_every_strategy_is_resumed_and_repeated_or_named():
    options = RunOptions(network="language-model", replicas=(1, 2), strategy=STRATEGIES)
    run = PlannedRun(preset("language-model", "tiny"), options)
    each = {
        (side.framework, side.strategy, side.replicas) for side in run.of_strategies.values()
    }
    assert each == {
        ("paddle", "parallel-executor", 2),
        ("tensorflow", "towers", 2),
        ("tensorflow", "mirrored", 2),
    }
    assert [side.strategy for side in run.leading.values()] == ["parallel-executor", "towers"]
    fewest = leading_sides(run.sides, most_replicas=False)
    assert {side.replicas for side in fewest.values()} == {1}
    assert sides_of_strategies(run.of_strategies) == run.of_strategies
    left_out = unchecked(run, RunVerdict("float64", sides=run.sides))
    for check in ("resume", "repeat"):
        named = [name for name in left_out if name.startswith(f"{check} of ")]
        assert len(named) == 2
        assert all("asynchronous" in name for name in named)


def test_replicas_by_default_are_as_many_as_the_processes_asked_for():
    strategies = ("paddle=data-parallel", "tensorflow=multi-worker")
    settings = StrategySettings(processes=2)
    given = RunOptions(network="language-model", strategy=strategies, settings=settings)
    sides = sides_of(resolved(given)).values()
    assert {(side.replicas, side.processes) for side in sides} == {(2, 2)}
    assert resolved(RunOptions(network="language-model")).replicas == (1, 2, 3)


def test_a_witness_that_cannot_be_had_is_refused_before_anything_is_trained(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("PARITY_PYTORCH_PYTHON", "/bin/false")
    out = tmp_path / "out"
    free = ("tensorflow=asynchronous", "paddle=asynchronous")
    for values, refusal in (
        ({}, r"--witness is pytorch, but torch is not installed for /bin/false; allowed: "),
        ({"strategy": free}, "--witness is pytorch; allowed: with a synchronous side"),
    ):
        given = {"network": "language-model", "out": out, "witness": "pytorch"} | values
        with pytest.raises(UsageError, match=refusal):
            run(preset("language-model", "tiny"), RunOptions(**given))
    assert not out.exists()
