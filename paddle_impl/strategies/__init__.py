"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry

STRATEGIES = StrategyRegistry(
    "paddle",
    StrategyEntry(
        "parallel-executor",
        "paddle_impl.strategies.parallel_executor:ParallelExecutorStrategy",
        "runs one static program on every replica; the engine's all-reduce sums the gradients",
    ),
)
