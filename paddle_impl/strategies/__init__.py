"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.twins.spec.strategies import (
    StrategyEntry,
    StrategyRegistry,
    StrategySettings,
    Traits,
)

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
    StrategyEntry(
        "asynchronous",
        "paddle_impl.strategies.asynchronous:Asynchronous",
        "a thread per replica takes its own steps, with its own copies of the weights",
        traits=Traits(synchronous=False),
        setting_defaults=StrategySettings(schedule="free"),
        optional_settings=("staleness",),
    ),
    StrategyEntry(
        "layers",
        "paddle_impl.strategies.layers:Layers",
        "spreads the layers of each replica over several devices, and works on micro-batches",
        Traits(devices="layers"),
        StrategySettings(stages=2, micro_batches=2),
    ),
    StrategyEntry(
        "data-parallel",
        "paddle_impl.strategies.data_parallel:DataParallel",
        "divides the replicas among processes; paddle.distributed's all-reduce sums gradients",
        Traits(processes=True),
        optional_settings=("processes",),
    ),
    StrategyEntry(
        "parameter-server",
        "paddle_impl.strategies.parameter_server:ParameterServer",
        "a process per worker pulls weights from the engine's servers and pushes its gradient",
        Traits(
            synchronous=False,
            processes=True,
            serves=("ps",),
            dtypes=("float32",),
            optimizers=("sgd",),
            limit="its servers keep float32, and their state cannot be read for a checkpoint",
        ),
        StrategySettings(schedule="free", servers=1),
        ("staleness", "processes"),
        serve="paddle_impl.strategies.serving:serve",
    ),
    lacking={
        "parameter-server-sync": "Paddle 2.6.2's trainers crash where synchronous parameter "
        "servers have them wait for each other",
    },
)
