"""Makes the group of processes that a training runs in."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from parity.base.errors import DEFECT_STATUS, RankLost, UsageError
from parity.base.machine import usable_cores
from parity.base.progress import be_quiet, say
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.connected_group import ConnectedGroup
from parity.twins.processes.group import ProcessGroup, StepWatch
from parity.twins.processes.handshake import SECRET_FILE, run_secret
from parity.twins.processes.hosts import HostList, read_hosts
from parity.twins.processes.launcher_variables import (
    RUN,
    SERVER,
    WORKER,
    Membership,
    membership,
)
from parity.twins.processes.private_network import warn_of_ports
from parity.twins.processes.supervisor import start_processes
from parity.twins.spec.fields import flag
from parity.twins.spec.strategies import StrategyEntry

_MOST = 8
# what engines raise although every rank may be alive: gloo when it gives up after 30 s, and
# TensorFlow when, once in many trainings, its server does not understand its client
_CUT_OFF = re.compile(r".*(\] TIMEOUT self_rank|\"Unable to parse request\").*")


@contextmanager
def process_group(
    framework: str, entry: StrategyEntry, options: TrainOptions
) -> Iterator[ProcessGroup]:
    """Yield the group that this process belongs to, for a training with a strategy.

    A process that a launcher has made a member joins the others. Any other starts as many
    processes as the settings say, and never comes to the body of the context: it watches over
    them and ends with them, by SystemExit.

    An error in the body is made known to the other ranks.

    Args:
      framework: "paddle" or "tensorflow".
      entry: the strategy.
      options: the command line, with the settings of the strategy.

    Raises:
      UsageError: for variables or numbers that do not fit each other.
    """
    for name in ("max_restarts", "hosts"):
        value = getattr(options, name)
        if value and not entry.traits.processes:
            raise UsageError(
                f"{flag(name)} is {value}; not allowed for the strategy {entry.name}, which "
                "runs in one process"
            )
    if not entry.traits.processes:
        yield ProcessGroup()
        return
    launcher, serves = entry.traits.launcher or framework, entry.traits.serves
    member = membership(launcher, os.environ, serves)
    if member is None:
        hosts = None if options.hosts is None else read_hosts(options.hosts)
        workers = number_of_workers(options, hosts)
        _check_share(entry, workers, options.replicas)
        if workers == 1 and not serves:
            yield ProcessGroup()
            return
        counts = {WORKER: workers, SERVER: options.settings.servers or 1}
        served = {job: counts[job] for job in serves}
        ranks = 1 if WORKER in serves else workers
        restarts, trusted = options.max_restarts, options.i_trust_this_network
        start_processes(launcher, ranks, served, restarts, hosts, trusted)
        member = membership(launcher, os.environ, serves)
        assert member is not None
    elif member.number == 0 and not options.i_trust_this_network:
        warn_of_ports(launcher, member.members)
        if not run_secret(os.environ):
            say(
                f"warning: {SECRET_FILE} is not set: whoever reaches {member.meeting} can be "
                "taken for a rank"
            )
    group = _group(member)
    group.serve, group.steps = entry.serve, StepWatch(options.stall_seconds)
    _check_numbers(group, entry, options)
    try:
        yield group
        group.close()
    except Exception as error:
        message, status = str(error), getattr(error, "exit_status", None)
        if status is None:  # an engine's error: another rank may be the reason
            group.await_verdict()
            message, status = f"{type(error).__name__}: {error}", DEFECT_STATUS
            if (said := _CUT_OFF.search(message)) is not None:
                lost = RankLost(f"rank {group.rank} waited in vain for another: {said[0]}")
                group.fail(str(lost), lost.exit_status)
                raise lost from None
        group.fail(message, status)
        raise


def number_of_workers(options: TrainOptions, hosts: HostList | None) -> int:
    """Return how many processes to start that train, for a strategy of several processes.

    Args:
      options: the command line, with the settings of the strategy.
      hosts: the hosts to start them on, if they are listed.
    """
    usual = options.replicas or min(usable_cores(), _MOST) if hosts is None else hosts.ranks
    return options.settings.processes or usual


def _group(member: Membership) -> ProcessGroup:
    is_alone = len(member.members.jobs) == 1
    group: ProcessGroup = ProcessGroup() if is_alone else ConnectedGroup(member)
    group.run = os.environ.get(RUN, "")
    if group.run and group.rank:
        be_quiet()  # rank 0 says it for all
    return group


def _check_numbers(group: ProcessGroup, entry: StrategyEntry, options: TrainOptions) -> None:
    """Check that a launcher has started as many processes as the command line says."""
    settings = options.settings
    if settings.processes not in (None, group.workers):
        raise UsageError(
            f"--processes is {settings.processes}, but the launcher has started "
            f"{group.workers}; allowed: the same number, or none"
        )
    servers = len(group.served.get(SERVER, ()))
    if servers and settings.servers not in (None, servers):
        raise UsageError(
            f"--servers is {settings.servers}, but the launcher has started {servers}; "
            "allowed: the same number"
        )
    _check_share(entry, group.workers, options.replicas)


def _check_share(entry: StrategyEntry, processes: int, replicas: int | None) -> None:
    if not entry.traits.synchronous and replicas not in (None, processes):
        noun = "process" if processes == 1 else "processes"
        raise UsageError(
            f"--replicas is {replicas} in {processes} {noun}; allowed for {entry.name}: "
            f"{processes}, because each process takes steps of its own"
        )
    if replicas is not None and replicas % processes:
        raise UsageError(
            f"--replicas is {replicas}, which {processes} processes cannot share evenly; "
            f"allowed: a multiple of {processes}"
        )
