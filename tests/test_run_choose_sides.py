"""Which sides of a run stand for others, and which a run names as left out."""

from parity.twins.cli.options import RunOptions
from parity.twins.compare.verdict import RunVerdict
from parity.twins.run.choose_sides import leading_sides, sides_of_strategies
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.whole_run_checks import unchecked
from parity.twins.spec.spec import preset

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
