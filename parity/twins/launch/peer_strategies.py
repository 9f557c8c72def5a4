"""The peers' ways of running replicas, and which of them does what a strategy of ours does.

Nothing here loads a framework.
"""

from parity.twins.spec.strategies import (
    StrategyEntry,
    StrategyRegistry,
    StrategySettings,
    Traits,
)

PYTORCH = StrategyRegistry(
    "pytorch",
    StrategyEntry(
        "distributed-data-parallel",
        "parity.twins.peers.pytorch_data_parallel:DataParallel",
        "a process per replica, which DistributedDataParallel synchronises",
    ),
    StrategyEntry(
        "hogwild",
        "parity.twins.peers.pytorch_hogwild:Hogwild",
        "a process per replica takes its own steps, with weights in shared memory",
        Traits(synchronous=False),
        StrategySettings(schedule="free"),
        optional_settings=("staleness",),
    ),
    StrategyEntry(
        "pipeline",
        "parity.twins.peers.pytorch_pipeline:Pipeline",
        "a process per stage: torch.distributed.pipelining, with micro-batches",
        Traits(devices="layers"),
        StrategySettings(stages=2, micro_batches=2),
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


def counterpart(peer: str, traits: Traits) -> StrategyEntry | None:
    """Return the strategy of a peer that does what a strategy with some traits does, if any."""
    for entry in PEER_STRATEGIES[peer]:
        if (entry.traits.synchronous, entry.traits.devices) == (
            traits.synchronous,
            traits.devices,
        ):
            return entry
    return None
