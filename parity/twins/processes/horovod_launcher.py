"""The variables by which `horovodrun` makes a process a rank, and where its ranks meet.

`horovodrun` says where its rendezvous server is, a store of keys and values over HTTP in which
Horovod's processes find each other. Rank 0 writes there where it listens for the other ranks:
none of the variables names its host.
"""

import http.client
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from parity.base.errors import RankLost, UsageError

_RANK, _SIZE, _HOST = "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_HOSTNAME"
_SERVER, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_KEY = "/parity/meeting"
_MOST = 1 << 20  # processes
_LONGEST_ANSWER = 1000  # bytes; host:port
_AGREEING_SECONDS = 60.0
_REQUEST_SECONDS = 5.0
_RETRY_SECONDS = 0.1


def variables(rank: int, endpoints: Sequence[str]) -> dict[str, str]:
    """Return what `horovodrun` sets for a process, but for its rendezvous server.

    Args:
      rank: the number of the process.
      endpoints: "host:port" by rank, of which only the hosts count.
    """
    hosts = [endpoint.rpartition(":")[0] for endpoint in endpoints]
    places = [hosts[:each].count(host) for each, host in enumerate(hosts)]  # on their hosts
    own, place = hosts[rank], places[rank]
    values = {
        _RANK: rank,
        _SIZE: len(hosts),
        "HOROVOD_LOCAL_RANK": place,
        "HOROVOD_LOCAL_SIZE": hosts.count(own),
        # among the processes that have the same place on other hosts
        "HOROVOD_CROSS_RANK": places[:rank].count(place),
        "HOROVOD_CROSS_SIZE": places.count(place),
        _HOST: own,
    }
    return {name: str(value) for name, value in values.items()}


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the rank of this process and how many there are; None if it is no rank.

    Args:
      environment: the variables of the process.

    Raises:
      UsageError: for a variable that cannot be used.
    """
    rank, size = environment.get(_RANK), environment.get(_SIZE, "")
    if not rank:
        return None
    count = number(size, _MOST)
    if not count:
        raise UsageError(f"{_SIZE} is {size!r}; allowed: the number of processes")
    found = number(rank, count)
    if found is None:
        raise UsageError(
            f"{_RANK} is {rank!r}; allowed: 0 to {count - 1}, since {_SIZE} is {count}"
        )
    return found, count


def number(text: str, below: int) -> int | None:
    """Return the number that a variable holds; None if it is none from 0 to `below` - 1."""
    # longer ones, which Python would refuse to convert, are out of any range here
    found = int(text) if text.isdecimal() and len(text) < 10 else below
    return found if found < below else None


def agree_on_meeting(environment: Mapping[str, str]) -> str:
    """Return "host:port" where rank 0 listens for the other ranks.

    Rank 0 chooses a free port of its host; the others wait until it has.

    Args:
      environment: the variables of the process.

    Raises:
      UsageError: if the variables do not say where the rendezvous server is.
      RankLost: if rank 0, or the server, is not there.
    """
    host, port = environment.get(_SERVER, ""), environment.get(_PORT, "")
    if not host or not number(port, 1 << 16):
        raise UsageError(
            f"{_RANK} is set, but {_SERVER} is {host!r} and {_PORT} is {port!r}; allowed: as "
            "horovodrun --gloo sets them, or host:port in PARITY_MEETING"
        )
    server = f"{host}:{port}"
    if rank_and_size(environment) == (0, 1):
        return _free_endpoint("localhost")
    if environment[_RANK] == "0":
        meeting = _free_endpoint(environment.get(_HOST, "localhost"))
        _request(server, "PUT", meeting.encode())
        return meeting
    last = time.monotonic() + _AGREEING_SECONDS
    while time.monotonic() < last:
        answer = _request(server, "GET")
        if answer:
            return answer.decode(errors="replace")
        time.sleep(_RETRY_SECONDS)
    raise RankLost(
        f"rank 0 has not come to Horovod's rendezvous server at {server} within "
        f"{_AGREEING_SECONDS:.0f} s"
    )


def _free_endpoint(host: str) -> str:
    try:
        with socket.create_server((host, 0)) as listener:
            return f"{host}:{listener.getsockname()[1]}"
    except (OSError, ValueError):  # ValueError: a name that cannot be looked up
        raise UsageError(f"{_HOST} is {host!r}; allowed: an address of this host") from None


def _request(server: str, method: str, content: bytes | None = None) -> bytes | None:
    """Send a request; return the answer, or None if there is nothing at the key."""
    try:
        with closing(http.client.HTTPConnection(server, timeout=_REQUEST_SECONDS)) as asked:
            asked.request(method, _KEY, content)
            answer = asked.getresponse()
            found = answer.read(_LONGEST_ANSWER)
        return found if answer.status == http.HTTPStatus.OK else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RankLost(
            f"Horovod's rendezvous server at {server} is not to be reached: {error}"
        ) from None
