"""What a step costs on many ranks: the time of messages, in closed form.

A message of n bytes takes a + n b over a link with latency a and b seconds per byte (Hockney
1994, doi:10.1016/S0167-8191(06)80021-9). Software and link work at the same time where several
messages are on their way, so that the slower of them counts; one large message passes through
them one after the other. All ranks are alike, each has a link of its own that sends and
receives at once, and nothing else uses it; docs/scaling.md says where that ends.

Sources: Thakur et al. 2005, doi:10.1177/1094342005051521, for collectives; Patarasuk & Yuan
2009, doi:10.1016/j.jpdc.2008.09.002, for the ring; Denning & Buzen 1978,
doi:10.1145/356733.356735, for the bounds of asynchronous servers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A product's gradient is two products, one for each factor.
BACKWARD_SHARE = 2 / 3

# What an engine's software costs: the numbers of `Engine` that are measured.
SOFTWARE = ("per_collective", "per_message", "per_byte")

_AT_ONCE = 2  # messages that a receiver asks for at a time


@dataclass(frozen=True)
class Link:
    """A link between two ranks.

    Attributes:
      latency: seconds until a small message is at the other end.
      bandwidth: bytes per second, in each direction.
    """

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Engine:
    """What an engine's software adds to the link.

    Attributes:
      per_collective: seconds of each all-reduce, or of each exchange with servers, whatever it
        sends.
      per_message: seconds of a message.
      per_byte: seconds of a byte that is copied, sent and added up.
      delays_before: how often a ring waits for the link's latency before its first round.
      segment: the greatest number of bytes of a message, if a chunk of a ring is divided into
        messages, each of which its receiver asks for, two at a time; None if a chunk is a
        message that nobody has to ask for.
    """

    per_collective: float = 0.0
    per_message: float = 0.0
    per_byte: float = 0.0
    delays_before: int = 0
    segment: int | None = None


@dataclass(frozen=True)
class Compute:
    """The time of a step without communication: a fixed part, and one for each row.

    Attributes:
      fixed: seconds of what does not depend on the rows, such as the update.
      per_row: seconds of each row.
    """

    fixed: float
    per_row: float

    def seconds(self, rows: float) -> float:
        """Return the time of a step with some rows."""
        return self.fixed + self.per_row * rows

    @classmethod
    def fitted(cls, rows: Sequence[float], seconds: Sequence[float]) -> "Compute":
        """Return the line through measured steps with the least relative squared error."""
        weights = 1 / np.asarray(seconds)
        table = np.stack([np.ones(len(rows)), np.asarray(rows, float)], 1) * weights[:, None]
        fixed, per_row = np.linalg.lstsq(table, np.ones(len(rows)), rcond=None)[0]
        if fixed < 0:  # noise: nothing takes less than no time
            shares = np.asarray(rows, float) * weights
            return cls(0.0, float(shares.sum() / (shares**2).sum()))
        return cls(float(fixed), max(0.0, float(per_row)))


@dataclass(frozen=True)
class Exchange:
    """What one step's communication costs.

    Attributes:
      seconds: how long it takes.
      sent: bytes that the busiest rank or server sends over the link between hosts.
    """

    seconds: float
    sent: float


def ring(ranks: int, size: float, link: Link, engine: Engine) -> Exchange:
    """Return the cost of summing a buffer over ranks by a ring.

    In each of 2 (N - 1) rounds every rank sends one of N equal chunks to its neighbour: N - 1
    rounds sum, N - 1 hand the sums on. Each rank sends 2 (N - 1) / N of the buffer, the least
    that is possible.

    Args:
      ranks: the number of ranks, N.
      size: the buffer's bytes.
      link: the link between neighbours.
      engine: the software.
    """
    if ranks == 1:
        return Exchange(0.0, 0.0)
    rounds, chunk = 2 * (ranks - 1), size / ranks
    before = engine.per_collective + engine.delays_before * link.latency
    if engine.segment is not None:
        segments = max(_AT_ONCE, math.ceil(chunk / engine.segment))
        each = engine.per_message + chunk / segments * seconds_per_byte(link, engine)
        half = asked_for((ranks - 1) * segments, each, link.latency)
        return Exchange(before + 2 * half, rounds * chunk)
    each = link.latency + engine.per_message + chunk * seconds_per_byte(link, engine)
    return Exchange(before + rounds * each, rounds * chunk)


def asked_for(count: int, each: float, latency: float) -> float:
    """Return the seconds until messages have come that are asked for, two at a time.

    The receiver asks for the first two at once, and for another whenever one has come. The link
    limits that, or the time from asking for a message until it has come.

    Args:
      count: the number of messages.
      each: seconds for which a message occupies the link.
      latency: seconds from one end of the link to the other.
    """
    limited_by_link = 2 * latency + count * each
    turns = math.ceil(count / _AT_ONCE)
    limited_by_turns = turns * (2 * latency + each) + (each if count % _AT_ONCE == 0 else 0.0)
    return max(limited_by_link, limited_by_turns)


def hierarchical_ring(
    ranks: int, per_host: int, size: float, local: Link, link: Link, engine: Engine
) -> Exchange:
    """Return the cost of summing a buffer by rings inside hosts and rings between them.

    The ranks of a host sum by the first half of a ring, so that each has the sum of one part;
    then the ranks that have the same part sum it over hosts, all parts at once over the host's
    one link; then the ranks of a host hand their parts on.

    Args:
      ranks: the number of ranks; a host has `per_host` of them, the last one perhaps fewer.
      per_host: the number of ranks of a host.
      size: the buffer's bytes.
      local: the link between the ranks of a host.
      link: the link of each host.
      engine: the software.
    """
    inside = ring(min(ranks, per_host), size, local, engine)
    between = ring(math.ceil(ranks / per_host), size, link, engine)
    return Exchange(inside.seconds + between.seconds, between.sent)


def servers(
    ranks: int, count: int, push: float, pull: float, link: Link, engine: Engine
) -> Exchange:
    """Return the cost of a synchronous step of parameter servers.

    Every rank sends its gradients to the servers, each of which has an equal share of the
    parameters; when all have come, every rank fetches the new weights. A server's link carries
    its share for each of the ranks.

    Args:
      ranks: the number of ranks that compute; the servers are processes beside them.
      count: the number of servers.
      push: bytes of a rank's gradients.
      pull: bytes of the weights that a rank fetches.
      link: the link of each rank and each server.
      engine: the software.
    """
    busiest = max(ranks / count, 1.0)  # a rank's own link carries all of its bytes
    moved = (push + pull) * busiest * seconds_per_byte(link, engine)
    # a request for weights goes before the answer
    waits = 3 * link.latency + 2 * max(ranks, count) * engine.per_message
    waits += engine.per_collective
    return Exchange(waits + moved, max(pull * ranks / count, push))


def server_per_rank(ranks: int, size: float, link: Link, engine: Engine) -> Exchange:
    """Return the cost of a synchronous step if every rank is a server, too.

    It sends as many bytes as a ring, all to different ranks at once: fewer waits for the link,
    and as many messages.

    Args:
      ranks: the number of ranks, N, each of which serves 1 / N of the parameters.
      size: bytes of the gradients, and of the weights.
      link: the link of each rank.
      engine: the software.
    """
    if ranks == 1:
        return Exchange(0.0, 0.0)
    sent = 2 * (ranks - 1) / ranks * size
    messages = 2 * (ranks - 1) * engine.per_message + engine.per_collective
    return Exchange(3 * link.latency + messages + sent * seconds_per_byte(link, engine), sent)


def asynchronous_rate(
    ranks: int,
    count: int,
    compute: float,
    push: float,
    pull: float,
    link: Link,
    engine: Engine,
) -> float:
    """Return how many updates per second asynchronous parameter servers reach at most.

    Either every rank is always busy and none waits for another, or the servers' links are full.

    Args:
      ranks: the number of ranks that compute.
      count: the number of servers.
      compute: seconds of a rank's own step.
      push: bytes of a rank's gradients.
      pull: bytes of the weights that a rank fetches.
      link: the link of each rank and each server.
      engine: the software.
    """
    alone = compute + servers(1, count, push, pull, link, engine).seconds
    # a link works in both directions at once, and software does not
    busy = max(max(push, pull) / link.bandwidth, (push + pull) * engine.per_byte)
    return min(ranks / alone, count / busy if busy else math.inf)


def overlapped(compute: float, communication: float) -> float:
    """Return the seconds of a step that communicates while the backward pass computes.

    It is a bound: the last layer's gradients would have to be as many as all others' together.

    Args:
      compute: seconds of the step without communication.
      communication: seconds of the communication by itself.
    """
    return compute + max(0.0, communication - BACKWARD_SHARE * compute)


def seconds_per_byte(link: Link, engine: Engine) -> float:
    """Return how long a byte takes through the software and over a link."""
    both = 1 / link.bandwidth, engine.per_byte
    return sum(both) if engine.segment is None else max(both)
