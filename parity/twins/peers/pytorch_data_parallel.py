"""Data parallelism in PyTorch: one process per replica, and DistributedDataParallel.

Source: Li et al. 2020, arXiv:2006.15704 (DDP); for the processes
docs.pytorch.org/docs/stable/notes/multiprocessing.html.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch.distributed
import torch.multiprocessing  # which sends tensors in shared memory without a copy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parity.twins.peers.pytorch_replica import Decoder, Feed, Replica, arrays, tensors
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.strategy import Build


class DataParallel:
    """A training in PyTorch; a Strategy, see parity/twins/training/strategy.py.

    Attributes:
      framework: the peer's name.
      spec: the network, its text and its training.
      build: the settings that it was built with.
      entry: its entry in the registry of the peer.
      replicas: the number of replicas that share each batch, each in a process of its own.
    """

    framework = "pytorch"

    def __init__(self, spec: Spec, build: Build, entry: StrategyEntry):
        """Build the network on every replica."""
        self.spec, self.build, self.entry = spec, build, entry
        self.replicas = build.replicas
        self._others: list[Connection] = []
        # where the processes find each other; it is removed with this object
        self._rendezvous = tempfile.TemporaryDirectory(prefix="parity-")
        context = torch.multiprocessing.get_context("spawn")
        for rank in range(1, self.replicas):
            connection, remote = context.Pipe()
            served = remote, spec, build, rank, self._rendezvous.name
            context.Process(target=_serve, args=served, daemon=True).start()
            self._others.append(connection)
        self._first = _replica(spec, build, 0, self._rendezvous.name)
        for other in self._others:
            other.recv()

    def sources(self) -> dict[str, str]:
        return {}  # PyTorch keeps no calls with what it computed

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        self._call_all("load", [(snapshot,)] * self.replicas)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
        record: bool = False,
    ) -> StepResult:
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._call_all("step", [(feed, learning_rate) for feed in feeds])
        losses, states, norms = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined_rows(states), norms[0], {})

    def evaluate(self, inputs: StepInputs, state: Mapping[str, np.ndarray]) -> StepResult:
        feeds = split_feeds(self.spec, inputs, state, self.replicas)
        results = self._call_all("evaluate", [(feed,) for feed in feeds])
        losses, states = zip(*results, strict=True)
        return StepResult(np.array(losses), _joined_rows(states), 0.0, {})

    def snapshot(self) -> dict[str, np.ndarray]:
        return self._first.snapshot()

    def replica_distances(self) -> dict[str, np.ndarray]:
        first, *others = self._call_all("snapshot")
        return {
            name: np.array([0.0, *(np.abs(each[name] - array).max() for each in others)])
            for name, array in first.items()
        }

    def decoder(self) -> Decoder:
        return Decoder(self._first.network)

    def peak_memory(self) -> list[int]:
        """Return the peak memory of each process, in bytes."""
        return self._call_all("peak_memory")

    def _call_all(self, method: str, arguments: Sequence[tuple] | None = None) -> list[Any]:
        """Call a method of every replica at once, and return the results.

        Args:
          method: the method's name.
          arguments: the arguments for each replica; none if not given.
        """
        first, *others = arguments or [()] * self.replicas
        for connection, each in zip(self._others, others, strict=True):
            connection.send((method, each))
        results = [getattr(self._first, method)(*first)]
        return results + [connection.recv() for connection in self._others]


class _DataParallelReplica(Replica):
    """A replica whose gradients are summed over all replicas."""

    def __init__(self, spec: Spec, threads: int, replicas: int):
        super().__init__(spec, threads)
        self._replicas = replicas
        self._parallel: nn.Module = self.network
        if replicas > 1:
            self._parallel = DistributedDataParallel(self.network, gradient_as_bucket_view=True)

    def step(self, feed: Feed, rate: float) -> tuple[float, dict[str, np.ndarray], float]:
        """Train on this replica's rows; return its loss, its state and the gradient norm."""
        loss, state = self._parallel(tensors(feed))
        self.optimizer.zero_grad(set_to_none=True)
        # DDP averages the replicas' gradients, but these must be summed: the losses are shares
        (loss * self._replicas).sum().backward()
        norm = self.clip()
        self.update(rate)
        return loss.item(), arrays(state), norm


def _joined_rows(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the states of several replicas as one, rows first."""
    return {name: np.concatenate([each[name] for each in states]) for name in states[0]}


def _replica(spec: Spec, build: Build, rank: int, folder: str) -> _DataParallelReplica:
    """Return the replica of this process, one of several joined to the others over gloo.

    Args:
      spec: the network, its text and its training.
      build: how it is built.
      rank: the rank of this process.
      folder: the folder in which the processes find each other.
    """
    if build.replicas > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        where = f"file://{folder}/store"
        torch.distributed.init_process_group(
            "gloo", init_method=where, rank=rank, world_size=build.replicas
        )
    return _DataParallelReplica(spec, build.threads, build.replicas)


def _serve(connection: Connection, spec: Spec, build: Build, rank: int, folder: str) -> None:
    """Serve a non-zero rank until the pipe closes; see `_replica` for the arguments."""
    served = _replica(spec, build, rank, folder)
    connection.send(None)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        connection.send(getattr(served, method)(*arguments))
