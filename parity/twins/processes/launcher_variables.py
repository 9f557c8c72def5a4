"""What a process is in a training, and where: launchers' variables, addresses, free ports."""

import json
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from parity.base.errors import UsageError
from parity.base.text import parse_json
from parity.twins.processes import horovod_launcher

# "host:port" where rank 0 listens for the other ranks; see `meeting_point`.
MEETING = "PARITY_MEETING"
# A name for the command that has started all processes, the same when it starts them again.
RUN = "PARITY_RUN"

# What a process can be: a rank takes the steps of the training; the others only serve, as
# parameter servers, or as workers that rank 0 drives.
RANK, WORKER, SERVER = "rank", "worker", "ps"

_PORTS_APART = 100
_MOST_TASKS = 1 << 20
LAST_PORT = 65_535


@dataclass(frozen=True)
class Members:
    """The processes of a training, which are numbered: first the ranks, then those that serve.

    Attributes:
      endpoints: "host:port" for the engine, by rank.
      served: job -> "host:port" of each process that serves as that, in the order of numbers.
    """

    endpoints: tuple[str, ...]
    served: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Return the job of each process, and its number among those of the job."""
        listed = {RANK: self.endpoints, **self.served}
        return [(job, i) for job, each in listed.items() for i in range(len(each))]

    def at(self, endpoints: Sequence[str]) -> "Members":
        """Return the same processes with other addresses, "host:port" by number."""
        ranks, first, served = tuple(endpoints[: len(self.endpoints)]), len(self.endpoints), {}
        for job, each in self.served.items():
            served[job], first = tuple(endpoints[first : first + len(each)]), first + len(each)
        return Members(ranks, served)

    @property
    def names(self) -> list[str]:
        """Return the name of each process, such as "rank 0" or "ps 1"."""
        return [f"{job} {index}" for job, index in self.jobs]


@dataclass(frozen=True)
class Membership:
    """The place of a process among those of a training.

    Attributes:
      number: its number among all of them, from 0; of a rank its rank.
      members: all of them.
      meeting: "host:port" where rank 0 listens for the others.
    """

    number: int
    members: Members
    meeting: str


def variables(framework: str, number: int, members: Members, meeting: str) -> dict[str, str]:
    """Return the variables that make a process a member, as the framework's launcher sets them.

    Args:
      framework: "paddle" or "tensorflow", or the launcher "horovod".
      number: the number of the process.
      members: all processes of the training.
      meeting: "host:port" where rank 0 listens for the others.
    """
    if framework == "horovod":
        found = horovod_launcher.variables(number, members.endpoints)
    elif framework == "tensorflow":
        found = _for_tensorflow(number, members)
    elif members.served:
        found = _for_paddle_servers(number, members)
    else:
        found = _for_paddle(number, members.endpoints)
    return {**found, MEETING: meeting}


def membership(
    framework: str, environment: Mapping[str, str], serves: Sequence[str] = ()
) -> Membership | None:
    """Return what a launcher has set; None if the process was started by itself.

    Args:
      framework: "paddle" or "tensorflow", or the launcher "horovod".
      environment: the variables of the process.
      serves: the jobs of the strategy's processes that only serve.

    Raises:
      UsageError: for a variable that cannot be used.
    """
    if framework == "horovod":
        return _of_horovod(environment)
    if framework == "tensorflow":
        found = _of_tensorflow(environment, serves)
    elif serves:
        found = _of_paddle_servers(environment)
    else:
        found = _of_paddle(environment)
    if found is None:
        return None
    number, members = found
    meeting = environment.get(MEETING) or meeting_point(members.endpoints)
    if not _is_endpoint(meeting):
        raise UsageError(f"{MEETING} is {meeting!r}; allowed: host:port")
    return Membership(number, members, meeting)


def meeting_point(endpoints: Sequence[str]) -> str:
    """Return where the ranks meet unless the variable says otherwise.

    It is on rank 0's host, 100 ports above the engine's, or as far below where there are none.
    """
    host, port = endpoints[0].rsplit(":", 1)
    above = int(port) + _PORTS_APART
    return f"{host}:{above if above <= LAST_PORT else int(port) - _PORTS_APART}"


def _for_paddle(rank: int, endpoints: Sequence[str]) -> dict[str, str]:
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(len(endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
    }


def _for_paddle_servers(number: int, members: Members) -> dict[str, str]:
    job, index = members.jobs[number]
    servers = members.served[SERVER]
    found = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers),
        "PADDLE_TRAINERS_NUM": str(len(members.endpoints)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(members.endpoints),
        "TRAINING_ROLE": "TRAINER" if job == RANK else "PSERVER",
    }
    host, port = (members.endpoints if job == RANK else servers)[index].rsplit(":", 1)
    own = {"POD_IP": host, "PADDLE_PORT": port}
    return {**found, **own, **({"PADDLE_TRAINER_ID": str(index)} if job == RANK else {})}


def _for_tensorflow(number: int, members: Members) -> dict[str, str]:
    job, index = members.jobs[number]
    if not members.served:
        cluster = {"worker": members.endpoints}
        task = {"type": "worker", "index": index}
    else:
        chief, *others = members.endpoints
        workers = {"worker": tuple(others)} if others else {}
        cluster = {"chief": (chief,), **workers, **members.served}
        task = {"type": job, "index": index}
        if job == RANK:
            task = (
                {"type": "worker", "index": index - 1}
                if index
                else {"type": "chief", "index": 0}
            )
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def _of_paddle(environment: Mapping[str, str]) -> tuple[int, Members] | None:
    listed = environment.get("PADDLE_TRAINER_ENDPOINTS")
    if not listed:
        return None
    endpoints = listed.split(",")
    _check_endpoints("PADDLE_TRAINER_ENDPOINTS", endpoints)
    rank = environment.get("PADDLE_TRAINER_ID", "")
    number = horovod_launcher.number(rank, len(endpoints))
    if number is None:
        raise UsageError(
            f"PADDLE_TRAINER_ID is {rank!r}; allowed: 0 to {len(endpoints) - 1}, since "
            f"PADDLE_TRAINER_ENDPOINTS lists {len(endpoints)}"
        )
    return number, Members(tuple(endpoints))


def _of_paddle_servers(environment: Mapping[str, str]) -> tuple[int, Members] | None:
    listed = environment.get("PADDLE_PSERVERS_IP_PORT_LIST")
    if not listed:
        return None
    servers = listed.split(",")
    _check_endpoints("PADDLE_PSERVERS_IP_PORT_LIST", servers)
    trainers = environment.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    _check_endpoints("PADDLE_TRAINER_ENDPOINTS", trainers)
    members = Members(tuple(trainers), {SERVER: tuple(servers)})
    role = environment.get("TRAINING_ROLE")
    if role == "PSERVER":
        own = f"{environment.get('POD_IP')}:{environment.get('PADDLE_PORT')}"
        if own not in servers:
            raise UsageError(
                f"POD_IP and PADDLE_PORT are {own!r}; allowed: one of "
                f"PADDLE_PSERVERS_IP_PORT_LIST, {listed}"
            )
        return len(trainers) + servers.index(own), members
    rank = environment.get("PADDLE_TRAINER_ID", "")
    number = horovod_launcher.number(rank, len(trainers))
    if role != "TRAINER" or number is None:
        raise UsageError(
            f"TRAINING_ROLE is {role!r} and PADDLE_TRAINER_ID {rank!r}; allowed: PSERVER, or "
            f"TRAINER and 0 to {len(trainers) - 1}"
        )
    return number, members


def _of_tensorflow(
    environment: Mapping[str, str], serves: Sequence[str]
) -> tuple[int, Members] | None:
    listed = environment.get("TF_CONFIG")
    if not listed:
        return None
    try:
        values = parse_json(listed)
        cluster = {str(job): list(each) for job, each in values["cluster"].items()}
        task = values["task"]
        # launchers write it as a number or as text
        own = (str(task["type"]), horovod_launcher.number(str(task["index"]), _MOST_TASKS))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"TF_CONFIG is {listed!r}; allowed: JSON with cluster, a list of host:port for "
            "each job, and task.type and task.index"
        ) from None
    for job, each in cluster.items():
        _check_endpoints(f"TF_CONFIG's cluster.{job}", each)
    # the chief is rank 0; where workers are driven by it, it is the only rank
    ranks = [("chief", 0)] if "chief" in cluster else []
    if WORKER not in serves:
        ranks += [(WORKER, index) for index in range(len(cluster.get(WORKER, ())))]
    serving = [(job, index) for job in serves for index in range(len(cluster.get(job, ())))]
    needed = {*serves} | ({"chief"} if WORKER in serves else set())
    allowed = needed | {"chief", WORKER} if serves else {WORKER}
    if not needed <= {*cluster} <= allowed or not ranks or own not in [*ranks, *serving]:
        jobs = ", ".join(sorted(allowed))
        raise UsageError(
            f"TF_CONFIG is {listed!r}; allowed for this strategy: a cluster with the jobs "
            f"{jobs}, and a task that is one of them"
        )
    members = Members(
        tuple(cluster[job][index] for job, index in ranks),
        {job: tuple(cluster[job]) for job in serves},
    )
    return [*ranks, *serving].index(own), members


def _of_horovod(environment: Mapping[str, str]) -> Membership | None:
    place = horovod_launcher.rank_and_size(environment)
    if place is None:
        return None
    rank, size = place
    meeting = environment.get(MEETING) or horovod_launcher.agree_on_meeting(environment)
    if not _is_endpoint(meeting):
        raise UsageError(f"{MEETING} is {meeting!r}; allowed: host:port")
    # Horovod's processes tell each other where they listen: these only count them
    return Membership(rank, Members((meeting,) * size), meeting)


def _check_endpoints(name: str, endpoints: object) -> None:
    listed = endpoints if isinstance(endpoints, list) else []
    if not listed or not all(_is_endpoint(str(each)) for each in listed):
        raise UsageError(f"{name} is {endpoints!r}; allowed: host:port for each process")


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    is_port = port.isdecimal() and len(port) < 6 and 0 < int(port) <= LAST_PORT
    return bool(host) and is_host_name(host) and is_port


def free_ports(address: str, count: int, ports: tuple[int, int] | None = None) -> list[int]:
    """Return ports of an address of this host that nothing listens at.

    Args:
      address: a name or an address of this host.
      count: how many ports to return.
      ports: the first and the last port to choose from; None for any that the system has free.

    Raises:
      UsageError: if the address is of another host, or there are not as many free ports.
    """
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        raise UsageError(
            f"{address!r} is no address of this host ({error.strerror}); allowed: one by which "
            "the other hosts reach it"
        ) from None
    if ports is None:
        tried = [0] * count
    else:  # drawn, so that trainings that start at the same time seldom choose the same
        tried = random.sample(range(ports[0], ports[1] + 1), ports[1] + 1 - ports[0])
    found: list[int] = []
    with ExitStack() as stack:
        for port in tried:
            if len(found) == count:
                break
            try:
                listener = stack.enter_context(socket.create_server((address, port)))
            except OSError:  # in use
                continue
            found.append(listener.getsockname()[1])
    if len(found) < count:
        assert ports is not None
        raise UsageError(
            f"{len(found)} of {count} ports from {ports[0]} to {ports[1]} are free at "
            f"{address}; allowed: a range with more"
        )
    return found


def is_host_name(text: str) -> bool:
    """Return whether a text can be looked up: none of its parts is empty or too long."""
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True
