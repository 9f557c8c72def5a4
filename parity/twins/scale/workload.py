"""What a step and its gradients cost on any number of ranks, by each way to share the work."""

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parity.twins.scale import model
from parity.twins.scale.model import Compute, Engine, Exchange, Link
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.spec import Spec

_INDEX = 8  # bytes of a row's number


class Gradients(NamedTuple):
    """The bytes of a rank's gradients.

    Attributes:
      dense: of all gradients.
      embeddings: of those of embedding tables, which are a part of `dense`.
      sparse: of all gradients, if those of embedding tables were sent as the rows that the
        rank's batch has touched, each with its number.
      summed: of all gradients, as the engines' rings sum them: of embedding tables the rows
        that the batch of any rank has touched.
    """

    dense: float
    embeddings: float
    sparse: float
    summed: float


@lru_cache(maxsize=4096)
def gradients(spec: Spec, rows: float, all_rows: float) -> Gradients:
    """Return the bytes of the gradients of a batch.

    Args:
      spec: the network, its text and its training.
      rows: the number of rows of a rank's batch.
      all_rows: the number of rows of the batches of all ranks.
    """
    item = np.dtype(spec.training.dtype).itemsize
    tables = NETWORKS[spec.network].embeddings
    dense = embeddings = touched = by_any = 0.0
    for parameter in parameters(spec):
        size = float(np.prod(parameter.shape)) * item
        dense += size
        if parameter.name in tables:
            vocabulary, width = parameter.shape
            words = _tokens_per_row(spec, parameter.name)
            embeddings += size
            touched += different_words(vocabulary, rows * words) * (width * item + _INDEX)
            by_any += different_words(vocabulary, all_rows * words) * width * item
    others = dense - embeddings
    return Gradients(dense, embeddings, others + touched, others + by_any)


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
        sent = gradients(self.spec, rows / ranks, rows)
        compute = self.compute.seconds(rows / ranks)
        exchange = STRATEGIES[strategy]
        if exchange is None:  # ranks do not wait for each other
            size, servers = sent.dense, cluster.servers
            rate = model.asynchronous_rate(
                ranks, servers, compute, size, size, cluster.link, self.engine
            )
            return Step(ranks / rate, None, size * max(1.0, ranks / servers))
        seconds, busiest = astuple(exchange(ranks, sent, cluster, self.engine))
        return Step(compute + seconds, model.overlapped(compute, seconds), busiest)


# name -> what the communication of a step costs; None if it is not a part of the step
STRATEGIES: dict[str, Callable[[int, Gradients, Cluster, Engine], Exchange] | None] = {
    "ring": lambda n, sent, at, engine: model.ring(n, sent.summed, at.link, engine),
    "hierarchical ring": lambda n, sent, at, engine: model.hierarchical_ring(
        n, at.per_host, sent.summed, at.local, at.link, engine
    ),
    "servers": lambda n, sent, at, engine: model.servers(
        n, at.servers, sent.dense, sent.dense, at.link, engine
    ),
    "server on each rank": lambda n, sent, at, engine: model.server_per_rank(
        n, sent.dense, at.link, engine
    ),
    # a rank fetches no more rows of a table than its next batch touches
    "servers, touched rows": lambda n, sent, at, engine: model.servers(
        n, at.servers, sent.sparse, sent.sparse, at.link, engine
    ),
    "servers, asynchronous": None,
}
