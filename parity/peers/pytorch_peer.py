"""Trains the networks in PyTorch as its users would: one process per replica, and DDP.

`python -m parity.peers.pytorch_peer` takes the flags of `train.py` and trains as it does, with
validation, a test and checkpoints. Each replica is a process with `--threads` threads; several
are synchronised by DistributedDataParallel over gloo.

Source: Li et al. 2020, arXiv:2006.15704 (DDP).
"""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed

from parity.base.errors import UsageError
from parity.peers.command import training_command
from parity.peers.pytorch_decode import Decoder
from parity.peers.pytorch_replica import Replica
from parity.spec.spec import Spec
from parity.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.spec.strategies import StrategyEntry, Traits
from parity.training.strategy import Build


class Trainer:
    """Trains a network on some replicas; a Strategy, see parity/training/strategy.py.

    Attributes:
      spec: the network, its text and its training.
      build: the settings that it was built with.
      entry: its name and its traits.
      replicas: the number of replicas, each in a process of its own.
      framework: the peer's name.
    """

    framework = "pytorch"

    def __init__(self, spec: Spec, build: Build):
        """Build the network on every replica."""
        self.spec, self.build, self.replicas = spec, build, build.replicas
        self.entry = StrategyEntry(
            "distributed-data-parallel",
            "parity.peers.pytorch_peer:Trainer",
            "one process per replica, which DistributedDataParallel synchronises",
            Traits(processes=build.replicas),
        )
        self._others: list[Connection] = []
        if self.replicas > 1:
            # where the processes find each other; it is removed with this object
            self._rendezvous = tempfile.TemporaryDirectory(prefix="parity-")
            folder = self._rendezvous.name
            context = multiprocessing.get_context("spawn")
            for rank in range(1, self.replicas):
                connection, remote = context.Pipe()
                arguments = remote, spec, rank, self.replicas, build.threads, folder
                context.Process(target=_serve_rank, args=arguments, daemon=True).start()
                self._others.append(connection)
            _join_group(0, self.replicas, folder)
        self._replica = Replica(spec, build.threads, self.replicas)
        for other in self._others:
            other.recv()

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set weights and optimiser state on every replica, by canonical name and layout."""
        self._on_all("load", [(snapshot,)] * self.replicas)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        """Train on one global batch."""
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._on_all("step", [(feed, learning_rate) for feed in feeds])
        losses, states, norms = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined(states), norms[0], {})

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        """Compute the loss of one global batch, without dropout and without an update."""
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._on_all("evaluate", [(feed,) for feed in feeds])
        losses, states = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined(states), 0.0, {})

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return weights and optimiser state by canonical name, in canonical layout."""
        return self._replica.snapshot()

    def replica_distances(self) -> dict[str, np.ndarray]:
        """Return how far each replica is from replica 0, tensor name -> [replicas]."""
        first, *others = self._on_all("snapshot", [()] * self.replicas)
        return {
            name: np.array([0.0, *(np.abs(each[name] - array).max() for each in others)])
            for name, array in first.items()
        }

    def profile(self) -> AbstractContextManager[list[Any]]:
        """Raise an error: a peer is not profiled."""
        raise UsageError("--profile is given; not allowed for pytorch")

    def decoder(self) -> Decoder:
        """Return a DecodingModel with the current weights."""
        return Decoder(self._replica.network)

    def peak_memory(self) -> list[int]:
        """Return the peak memory of each process, in bytes."""
        return self._on_all("peak_memory", [()] * self.replicas)

    def _on_all(self, method: str, arguments: list[tuple]) -> list[Any]:
        """Call a method of every replica with its arguments, and return the results."""
        first, *others = arguments
        for connection, each in zip(self._others, others, strict=True):
            connection.send((method, each))
        results = [getattr(self._replica, method)(*first)]
        return results + [connection.recv() for connection in self._others]


def _joined(states: Any) -> dict[str, np.ndarray]:
    """Return the replicas' states in one, rows first."""
    return {name: np.concatenate([each[name] for each in states]) for name in states[0]}


def _join_group(rank: int, replicas: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=replicas
    )


def _serve_rank(
    connection: Connection, spec: Spec, rank: int, replicas: int, threads: int, folder: str
) -> None:
    """Serve a non-zero rank until the pipe closes.

    Args:
      connection: receives the name of a method of Replica and its arguments, and sends the
        method's result.
      spec: the network, its text and its training.
      rank: the number of this replica, from 1.
      replicas: the number of replicas.
      threads: the number of CPU threads of this replica.
      folder: the folder in which the processes find each other.
    """
    _join_group(rank, replicas, folder)
    replica = Replica(spec, threads, replicas)
    connection.send(None)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        connection.send(getattr(replica, method)(*arguments))


def versions() -> dict[str, str]:
    """Return the versions that a summary records."""
    return {"torch": torch.__version__, "numpy": np.__version__}


if __name__ == "__main__":
    training_command("pytorch", Trainer, versions)
