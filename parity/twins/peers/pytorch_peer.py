"""Trains the networks in PyTorch as its users would, as the peer of both sides.

`python -m parity.twins.peers.pytorch_peer` takes the flags of `train.py` and trains as it does,
with validation, a test and checkpoints. `--strategy` names one of PyTorch's own ways of running
replicas; see parity/twins/launch/peer_strategies.py. With `--trace` it is a witness; see
parity/twins/peers/pytorch_witness.py.
"""

import numpy as np
import torch

from parity.twins.launch.peer_strategies import PYTORCH
from parity.twins.peers.command import training_command
from parity.twins.peers.pytorch_witness import record_witness


def versions() -> dict[str, str]:
    """Return the versions that a summary records."""
    return {"torch": torch.__version__, "numpy": np.__version__}


if __name__ == "__main__":
    training_command(PYTORCH, versions, record_witness)
