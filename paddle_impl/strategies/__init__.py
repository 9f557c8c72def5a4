"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry

STRATEGIES = StrategyRegistry(
    "paddle",
    StrategyEntry(
        "parallel-executor",
        "paddle_impl.strategies.parallel_executor:ParallelExecutorStrategy",
        "runs one static program on every replica; the engine's all-reduce sums the gradients",
    ),
    StrategyEntry(
        "parallel-do",
        "paddle_impl.strategies.parallel_do:ParallelDoStrategy",
        "Fluid 0.x's ParallelDo: a block of the program, run on every replica by that engine",
    ),
)
