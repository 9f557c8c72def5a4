"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry, StrategySettings, Traits

STRATEGIES = StrategyRegistry(
    "paddle",
    StrategyEntry(
        "parallel-executor",
        "paddle_impl.strategies.parallel_executor:ParallelExecutorStrategy",
        "runs one static program on every replica; the engine's all-reduce sums the gradients",
    ),
    StrategyEntry(
        "asynchronous",
        "paddle_impl.strategies.asynchronous:Asynchronous",
        "a thread per replica takes its own steps, with its own copies of the weights",
        traits=Traits(synchronous=False),
        takes=StrategySettings(schedule="free"),
        also_takes=("staleness",),
    ),
)
