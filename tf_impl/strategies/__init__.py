"""Ways of running replicas, one module each; `--strategy` chooses one by name."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry

STRATEGIES = StrategyRegistry(
    "tensorflow",
    StrategyEntry(
        "towers",
        "tf_impl.strategies.towers:Towers",
        "one graph with a tower per replica; the gradient of the sum of their losses",
    ),
    StrategyEntry(
        "average-gradients",
        "tf_impl.strategies.average_gradients:AverageGradients",
        "towers, each differentiated by itself; gradients averaged by their real tokens",
    ),
)
