"""Ways of running replicas, one module each; `--strategy` chooses one by name."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry

STRATEGIES = StrategyRegistry(
    "paddle",
    StrategyEntry(
        "parallel-executor",
        "paddle_impl.strategies.parallel_executor:ParallelExecutorStrategy",
        "one static program run on every replica; gradients summed by the engine's all-reduce",
    ),
)
