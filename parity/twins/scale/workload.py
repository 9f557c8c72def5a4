"""What a step and its gradients cost on any number of ranks, by each way to share the work."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parity.twins.scale import model
from parity.twins.scale.model import Compute, Engine, Exchange, Link
from parity.twins.spec.parameters import parameters
from parity.twins.spec.spec import Spec

_INDEX = 8  # bytes of a row's number


class Gradients(NamedTuple):
    """The bytes of a rank's gradients.

    Attributes:
      dense: of all gradients, as the engines send them here.
      embeddings: of those of embedding tables, which are a part of `dense`.
      sparse: of all gradients, if those of embedding tables were sent as the rows that the
        rank's batch has touched, each with its number.
    """

    dense: float
    embeddings: float
    sparse: float

    @property
    def touched(self) -> float:
        """Return the bytes of the touched rows."""
        return self.sparse - (self.dense - self.embeddings)


@lru_cache(maxsize=4096)
def gradients(spec: Spec, rows: float) -> Gradients:
    """Return the bytes of the gradients of a batch.

    Args:
      spec: the network, its text and its training.
      rows: the number of rows of a rank's batch.
    """
    item = np.dtype(spec.training.dtype).itemsize
    dense = embeddings = touched = 0.0
    for parameter in parameters(spec):
        size = float(np.prod(parameter.shape)) * item
        dense += size
        if parameter.name.endswith("embed/table"):
            vocabulary, width = parameter.shape
            words = rows * _tokens_per_row(spec, parameter.name)
            embeddings += size
            touched += different_words(vocabulary, words) * (width * item + _INDEX)
    return Gradients(dense, embeddings, dense - embeddings + touched)


def different_words(vocabulary: int, words: float) -> float:
    """Return how many different words are expected among some from a Zipf distribution.

    Words of real text are not independent of each other, which makes fewer of them different.
    """
    shares = 1 / np.arange(1, vocabulary + 1)
    shares /= shares.sum()
    return float(-np.expm1(words * np.log1p(-shares)).sum()) if vocabulary > 1 else 1.0


def _tokens_per_row(spec: Spec, table: str) -> int:
    *_, target = times = list(_times(spec))
    return times[0] if table.startswith("encoder/") else target


def _times(spec: Spec) -> Iterable[int]:
    """Yield the most tokens that a row can have: of the source, if any, and of the target."""
    for name in ("source_limit", "target_limit", "time"):
        if hasattr(spec.text, name):
            yield int(getattr(spec.text, name))


class Step(NamedTuple):
    """A predicted step.

    Attributes:
      seconds: how long it takes; of asynchronous servers, how long as many updates as ranks.
      overlapped: how long it would take if communication ran beside the backward pass; None
        where this is not possible.
      sent: bytes that the busiest rank or server sends between hosts.
    """

    seconds: float
    overlapped: float | None
    sent: float


@dataclass(frozen=True)
class Cluster:
    """Where ranks run, and how many there are of what.

    Attributes:
      link: the link of each host.
      local: the link between two ranks of one host.
      per_host: the number of ranks of a host.
      servers: the number of parameter servers.
    """

    link: Link
    local: Link
    per_host: int
    servers: int


@dataclass(frozen=True)
class Workload:
    """A network's step.

    Attributes:
      spec: the network, its text and its training.
      compute: the time of a step on one rank.
      engine: the software that communicates.
    """

    spec: Spec
    compute: Compute
    engine: Engine

    @property
    def batch(self) -> int:
        """Return the number of rows of the preset's batch."""
        return int(self.spec.training.batch_size)

    def step(self, strategy: str, ranks: int, rows: float, cluster: Cluster) -> Step | None:
        """Return a step on some ranks; None where it is not possible.

        Args:
          strategy: a name in STRATEGIES.
          ranks: the number of ranks.
          rows: the rows of the global batch.
          cluster: where the ranks run.
        """
        if rows < ranks:
            return None  # a rank would have nothing to do
        return STRATEGIES[strategy](self, ranks, rows, cluster)

    def synchronous(self, ranks: int, rows: float, exchange: Exchange) -> Step:
        """Return a step whose communication follows the computation."""
        compute = self.compute.seconds(rows / ranks)
        return Step(
            compute + exchange.seconds,
            model.overlapped(compute, exchange.seconds),
            exchange.sent,
        )


def _ring(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    size = gradients(work.spec, rows / ranks).dense
    return work.synchronous(ranks, rows, model.ring(ranks, size, cluster.link, work.engine))


def _hierarchical(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    size = gradients(work.spec, rows / ranks).dense
    exchange = model.hierarchical_ring(
        ranks, cluster.per_host, size, cluster.local, cluster.link, work.engine
    )
    return work.synchronous(ranks, rows, exchange)


def _server_per_rank(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    size = gradients(work.spec, rows / ranks).dense
    return work.synchronous(
        ranks, rows, model.server_per_rank(ranks, size, cluster.link, work.engine)
    )


def _servers(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    size = gradients(work.spec, rows / ranks).dense
    exchange = model.servers(ranks, cluster.servers, size, size, cluster.link, work.engine)
    return work.synchronous(ranks, rows, exchange)


def _sparse_servers(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    # a rank fetches no more rows of a table than its next batch touches
    size = gradients(work.spec, rows / ranks).sparse
    exchange = model.servers(ranks, cluster.servers, size, size, cluster.link, work.engine)
    return work.synchronous(ranks, rows, exchange)


def _asynchronous(work: Workload, ranks: int, rows: float, cluster: Cluster) -> Step:
    size = gradients(work.spec, rows / ranks).dense
    compute = work.compute.seconds(rows / ranks)
    rate = model.asynchronous_rate(
        ranks, cluster.servers, compute, size, size, cluster.link, work.engine
    )
    return Step(ranks / rate, None, size * max(1.0, ranks / cluster.servers))


# name -> how a step is predicted
STRATEGIES: dict[str, Callable[[Workload, int, float, Cluster], Step]] = {
    "ring": _ring,
    "hierarchical ring": _hierarchical,
    "servers": _servers,
    "server on each rank": _server_per_rank,
    "servers, touched rows": _sparse_servers,
    "servers, asynchronous": _asynchronous,
}
