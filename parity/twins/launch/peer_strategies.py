"""The peers' way of running replicas, and which strategies of ours do the same.

Nothing here loads a framework.
"""

from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry, Traits

PYTORCH = StrategyRegistry(
    "pytorch",
    StrategyEntry(
        "distributed-data-parallel",
        "parity.twins.peers.pytorch_data_parallel:DataParallel",
        "a process per replica, which DistributedDataParallel synchronises",
    ),
)
KERAS = StrategyRegistry(
    "keras",
    StrategyEntry(
        "mirrored",
        "parity.twins.peers.keras_peer:Trainer",
        "a logical device per replica, under MirroredStrategy",
    ),
)
PEER_STRATEGIES = {"pytorch": PYTORCH, "keras": KERAS}


def has_counterpart(traits: Traits) -> bool:
    """Return whether the peers do what a strategy with some traits does: data parallelism."""
    return traits.synchronous and traits.devices != "layers"
