"""Which rank a process is: the variables by which each framework's own launchers say so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.base.errors import UsageError
from parity.processes.ports import LAST_PORT

# "host:port" where rank 0 listens for the other ranks; see `meeting_point`.
MEETING = "PARITY_MEETING"
# A name for the command that has started all ranks, the same when it starts them again.
RUN = "PARITY_RUN"

_PORTS_APART = 100


@dataclass(frozen=True)
class Membership:
    """The place of a process among those of a training.

    Attributes:
      rank: its number, from 0.
      endpoints: "host:port" for the engine, by rank.
      meeting: "host:port" where rank 0 listens for the others.
    """

    rank: int
    endpoints: tuple[str, ...]
    meeting: str


def variables(
    framework: str, rank: int, endpoints: Sequence[str], meeting: str
) -> dict[str, str]:
    """Return the variables that make a process a rank, as the framework's launcher sets them.

    Args:
      framework: "paddle" or "tensorflow".
      rank: the number of the process.
      endpoints: "host:port" for the engine, by rank.
      meeting: "host:port" where rank 0 listens for the others.
    """
    if framework == "paddle":
        found = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(len(endpoints)),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        }
    else:
        task = {"type": "worker", "index": rank}
        found = {"TF_CONFIG": json.dumps({"cluster": {"worker": [*endpoints]}, "task": task})}
    return {**found, MEETING: meeting}


def membership(framework: str, environment: Mapping[str, str]) -> Membership | None:
    """Return what a launcher has set; None if the process was started by itself.

    Args:
      framework: "paddle" or "tensorflow".
      environment: the variables of the process.

    Raises:
      UsageError: for a variable that cannot be used.
    """
    found = _of_paddle(environment) if framework == "paddle" else _of_tensorflow(environment)
    if found is None:
        return None
    rank, endpoints = found
    meeting = environment.get(MEETING) or meeting_point(endpoints)
    if not _is_endpoint(meeting):
        raise UsageError(f"{MEETING} is {meeting!r}; allowed: host:port")
    return Membership(rank, tuple(endpoints), meeting)


def meeting_point(endpoints: Sequence[str]) -> str:
    """Return where the ranks meet unless the variable says otherwise.

    It is on rank 0's host, 100 ports above the engine's, or as far below where there are none.
    """
    host, port = endpoints[0].rsplit(":", 1)
    above = int(port) + _PORTS_APART
    return f"{host}:{above if above <= LAST_PORT else int(port) - _PORTS_APART}"


def _of_paddle(environment: Mapping[str, str]) -> tuple[int, list[str]] | None:
    listed = environment.get("PADDLE_TRAINER_ENDPOINTS")
    if not listed:
        return None
    endpoints = listed.split(",")
    _check_endpoints("PADDLE_TRAINER_ENDPOINTS", endpoints)
    rank = environment.get("PADDLE_TRAINER_ID", "")
    if not rank.isdecimal() or int(rank) >= len(endpoints):
        raise UsageError(
            f"PADDLE_TRAINER_ID is {rank!r}; allowed: 0 to {len(endpoints) - 1}, since "
            f"PADDLE_TRAINER_ENDPOINTS lists {len(endpoints)}"
        )
    return int(rank), endpoints


def _of_tensorflow(environment: Mapping[str, str]) -> tuple[int, list[str]] | None:
    listed = environment.get("TF_CONFIG")
    if not listed:
        return None
    try:
        values = json.loads(listed)
        endpoints, task = values["cluster"]["worker"], values["task"]
        kind, rank = task["type"], int(task["index"])
        others = set(values["cluster"]) - {"worker"}
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"TF_CONFIG is {listed!r}; allowed: JSON with cluster.worker, a list of host:port, "
            "and task.type and task.index"
        ) from None
    _check_endpoints("TF_CONFIG's cluster.worker", endpoints)
    if others or kind != "worker" or not 0 <= rank < len(endpoints):
        raise UsageError(
            f"TF_CONFIG is {listed!r}; allowed: a cluster of workers alone, and a task of type "
            f"worker with an index from 0 to {len(endpoints) - 1}"
        )
    return rank, endpoints


def _check_endpoints(name: str, endpoints: object) -> None:
    listed = endpoints if isinstance(endpoints, list) else []
    if not listed or not all(_is_endpoint(str(each)) for each in listed):
        raise UsageError(f"{name} is {endpoints!r}; allowed: host:port for each process")


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) <= LAST_PORT
