"""The processes of a PyTorch training: one object in this process, and one in each other.

Source: docs.pytorch.org/docs/stable/notes/multiprocessing.html
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed
import torch.multiprocessing  # which sends tensors in shared memory without a copy


class Processes:
    """Objects with the same methods: the first in this process, the others in one each.

    Several form a process group of `torch.distributed` over gloo before they are made.

    Args:
      make: the class of the objects, or a function that returns one.
      arguments: the arguments of `make` for each object.

    Attributes:
      first: the object of this process.
    """

    def __init__(self, make: Callable[..., Any], arguments: Sequence[tuple]):
        self._others: list[Connection] = []
        # where the processes find each other; it is removed with this object
        self._rendezvous = tempfile.TemporaryDirectory(prefix="parity-")
        folder = self._rendezvous.name if len(arguments) > 1 else None
        context = torch.multiprocessing.get_context("spawn")
        for rank, each in enumerate(arguments[1:], 1):
            connection, remote = context.Pipe()
            served = remote, make, each, rank, len(arguments), folder
            context.Process(target=_serve, args=served, daemon=True).start()
            self._others.append(connection)
        _join_group(0, len(arguments), folder)
        self.first = make(*arguments[0])
        for other in self._others:
            other.recv()

    def call_all(self, method: str, arguments: Sequence[tuple] | None = None) -> list[Any]:
        """Call a method of every object at once, and return the results.

        Args:
          method: the method's name.
          arguments: the arguments for each object; none if not given.
        """
        first, *others = arguments or [()] * (1 + len(self._others))
        for connection, each in zip(self._others, others, strict=True):
            connection.send((method, each))
        results = [getattr(self.first, method)(*first)]
        return results + [connection.recv() for connection in self._others]


def _join_group(rank: int, size: int, folder: str | None) -> None:
    """Join the process group whose processes find each other in a folder, if there is one."""
    if folder is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )


def _serve(
    connection: Connection,
    make: Callable[..., Any],
    arguments: tuple,
    rank: int,
    size: int,
    folder: str | None,
) -> None:
    """Serve a non-zero rank until the pipe closes.

    Args:
      connection: receives the name of a method and its arguments, and sends the result.
      make: makes the object whose methods are called.
      arguments: the arguments of `make`.
      rank: the rank of this process, from 1.
      size: the number of processes.
      folder: the folder in which the processes find each other; None for no process group.
    """
    _join_group(rank, size, folder)
    served = make(*arguments)
    connection.send(None)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        connection.send(getattr(served, method)(*arguments))
