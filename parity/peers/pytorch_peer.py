"""Trains the networks in PyTorch as its users would: one process per replica, and DDP.

`python -m parity.peers.pytorch_peer` takes the flags of `train.py`. Each replica is a process
with `--threads` threads; several are synchronised by DistributedDataParallel over gloo.

Source: Li et al. 2020, arXiv:2006.15704 (DDP).
"""

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parity.peers.command import peer_command
from parity.peers.pytorch_networks import NETWORKS, Recurrent
from parity.spec.initial import initial_snapshot
from parity.spec.spec import Spec
from parity.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.training.meter import peak_memory


class _Replica:
    """One process's copy of the network, and its optimiser."""

    def __init__(self, spec: Spec, threads: int, replicas: int):
        torch.set_num_threads(threads)
        self.spec, self.replicas = spec, replicas
        dtype = {"float32": torch.float32, "float64": torch.float64}[spec.training.dtype]
        torch.set_default_dtype(dtype)
        self.network = NETWORKS[spec.network](spec.model)
        self.canonical = dict(self.network.canonical)
        for module in self.network.modules():
            if isinstance(module, Recurrent):
                self.canonical |= module.canonical
        self.load(initial_snapshot(spec))
        self.trained = list(self.canonical.values())
        self.parallel: nn.Module = self.network
        if replicas > 1:
            self.parallel = DistributedDataParallel(self.network, gradient_as_bucket_view=True)
        training = spec.training
        rate = training.learning_rate
        self.optimizer: torch.optim.Optimizer
        if training.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.trained, rate, fused=True)
        else:
            betas = training.beta1, training.beta2
            self.optimizer = torch.optim.Adam(
                self.trained, rate, betas, training.epsilon, fused=True
            )

    def load(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set the weights; the optimiser's state is left as it is."""
        with torch.no_grad():
            for name, parameter in self.canonical.items():
                value = torch.from_numpy(np.array(snapshot[f"weight/{name}"]))
                kernel = name.endswith("kernel") and value.ndim == 2
                parameter.copy_(value.T if kernel else value)

    def step(self, feed: dict[str, np.ndarray], rate: float) -> tuple[float, Any, float]:
        """Train on this replica's rows; return its loss, its state and the gradient norm."""
        loss, state = self.parallel({n: torch.from_numpy(a) for n, a in feed.items()})
        self.optimizer.zero_grad(set_to_none=True)
        # DDP averages the replicas' gradients, but these must be summed: the losses are shares
        (loss * self.replicas).sum().backward()
        norm = nn.utils.clip_grad_norm_(self.trained, self.spec.training.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return loss.item(), {n: a.detach().numpy() for n, a in state.items()}, norm.item()


class Trainer:
    """Trains a network on some replicas.

    Attributes:
      spec: the network, its text and its training.
      replicas: the number of replicas, each in a process of its own.
      framework: the peer's name.
      versions: package -> version.
    """

    framework = "pytorch"
    versions: ClassVar = {"torch": torch.__version__}

    def __init__(self, spec: Spec, replicas: int, threads: int):
        """Build the network on every replica."""
        self.spec, self.replicas = spec, replicas
        self._others: list[Connection] = []
        if replicas > 1:
            # where the processes find each other; it is removed with this object
            self._rendezvous = tempfile.TemporaryDirectory(prefix="parity-")
            folder = self._rendezvous.name
            context = multiprocessing.get_context("spawn")
            for rank in range(1, replicas):
                connection, remote = context.Pipe()
                arguments = remote, spec, rank, replicas, threads, folder
                context.Process(target=_serve_rank, args=arguments, daemon=True).start()
                self._others.append(connection)
            _join_group(0, replicas, folder)
        self._replica = _Replica(spec, threads, replicas)
        for other in self._others:
            other.recv()

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
    ) -> StepResult:
        """Train on one global batch."""
        first, *others = split_feeds(self.spec, inputs, state, self.replicas)
        for connection, feed in zip(self._others, others, strict=True):
            connection.send((feed, learning_rate))
        results = [self._replica.step(first, learning_rate)]
        results += [connection.recv() for connection in self._others]
        losses, states, norms = zip(*results, strict=True)
        joined = {n: np.concatenate([each[n] for each in states]) for n in states[0]}
        return StepResult(np.array(losses), joined, norms[0], {})

    def peak_memory(self) -> list[int]:
        """Return the peak memory of each process, in bytes."""
        for connection in self._others:
            connection.send(None)
        return [peak_memory(), *(connection.recv() for connection in self._others)]


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
      connection: receives (feed, learning rate) to train a step, or None to return the peak
        memory.
      spec: the network, its text and its training.
      rank: the number of this replica, from 1.
      replicas: the number of replicas.
      threads: the number of CPU threads of this replica.
      folder: the folder in which the processes find each other.
    """
    _join_group(rank, replicas, folder)
    replica = _Replica(spec, threads, replicas)
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(peak_memory() if request is None else replica.step(*request))


if __name__ == "__main__":
    peer_command("pytorch", Trainer)
