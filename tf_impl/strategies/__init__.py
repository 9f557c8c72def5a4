"""The registry of strategies, which are ways of running replicas, with one module for each."""

from parity.spec.strategies import StrategyEntry, StrategyRegistry, StrategySettings, Traits

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
        takes=StrategySettings(shard_weights="tokens"),
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
)
