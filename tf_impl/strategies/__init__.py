"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.twins.spec.strategies import (
    StrategyEntry,
    StrategyRegistry,
    StrategySettings,
    Traits,
)

_SERVE = "tf_impl.strategies.serving:serve"  # in the processes that only serve

STRATEGIES = StrategyRegistry(
    "tensorflow",
    StrategyEntry(
        "towers",
        "tf_impl.strategies.towers:Towers",
        "builds one graph with a tower per replica, and differentiates the sum of their losses",
    ),
    StrategyEntry(
        "average-gradients",
        "tf_impl.strategies.average_gradients:AverageGradients",
        "differentiates each tower separately, and averages the gradients by real tokens",
        setting_defaults=StrategySettings(shard_weights="tokens"),
    ),
    StrategyEntry(
        "layers",
        "tf_impl.strategies.layers:Layers",
        "spreads the layers of each replica over several devices, and works on micro-batches",
        Traits(devices="layers"),
        StrategySettings(stages=2, micro_batches=2),
    ),
    StrategyEntry(
        "mirrored",
        "tf_impl.strategies.mirrored:Mirrored",
        "has a copy of the variables on every replica: tf.distribute.MirroredStrategy",
    ),
    StrategyEntry(
        "multi-worker",
        "tf_impl.strategies.multi_worker:MultiWorker",
        "runs in several processes, which sum gradients over a ring: "
        "tf.distribute.MultiWorkerMirroredStrategy",
        traits=Traits(processes=True),
        optional_settings=("processes",),
    ),
    StrategyEntry(
        "horovod",
        "tf_impl.strategies.horovod:Horovod",
        "runs the towers of several processes, whose gradients Horovod sums",
        traits=Traits(processes=True, launcher="horovod"),
        optional_settings=("processes",),
        environment=".venv-horovod",
    ),
    StrategyEntry(
        "parameter-server-sync",
        "tf_impl.strategies.parameter_server_sync:ParameterServerSync",
        "has the variables on servers, which sum the gradients of several processes: "
        "SyncReplicasOptimizer",
        traits=Traits(processes=True, serves=("ps",)),
        setting_defaults=StrategySettings(servers=1),
        optional_settings=("processes",),
        serve=_SERVE,
    ),
    StrategyEntry(
        "parameter-server",
        "tf_impl.strategies.parameter_server:ParameterServer",
        "processes that take their own steps, with weights on servers: "
        "tf.distribute.ParameterServerStrategy",
        traits=Traits(synchronous=False, processes=True, serves=("worker", "ps")),
        setting_defaults=StrategySettings(schedule="free", servers=1),
        optional_settings=("processes", "staleness"),
        serve=_SERVE,
    ),
    StrategyEntry(
        "asynchronous",
        "tf_impl.strategies.asynchronous:Asynchronous",
        "a thread per tower takes its own steps, with its own copies of the weights",
        traits=Traits(synchronous=False),
        setting_defaults=StrategySettings(schedule="free"),
        optional_settings=("staleness",),
    ),
)
