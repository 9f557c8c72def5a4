"""Reads the file that lists the hosts of a training: how many processes run on each, and how
one is started there."""

import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from parity.base.errors import UsageError
from parity.base.files import read_file
from parity.twins.processes.launcher_variables import LAST_PORT, RANK, WORKER, is_host_name
from parity.twins.spec.frameworks import FRAMEWORKS

# Asks for nothing, and notices a link that is cut.
_SSH = (
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "
    "-o ServerAliveCountMax=3"
)
# A strategy that has a launcher of its own may have an interpreter of its own, too.
_LAUNCHERS = tuple(
    entry.traits.launcher
    for framework in FRAMEWORKS.values()
    for entry in framework.strategies
    if entry.traits.launcher
)
_INTERPRETERS = (*FRAMEWORKS, *_LAUNCHERS)
_FOLDER = "an absolute path without spaces or quotes"
_CHECKOUT = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True)
class Host:
    """One host of a training.

    Attributes:
      name: what messages call it: the file, its number there and its address.
      address: the name or the address by which the other hosts reach it.
      ranks: how many processes that compute gradients run on it.
      command: the words that run a command there; empty for this machine.
      folder: its checkout of the project, an absolute path.
      python: framework, or launcher such as "horovod" -> the interpreter that runs its ranks.
      interface: the network interface that Paddle uses; None to find it by the address.
      environment: variables to set for its ranks.
    """

    name: str
    address: str
    ranks: int = 1
    command: tuple[str, ...] = ()
    folder: str = _CHECKOUT
    python: Mapping[str, str] = field(default_factory=dict)
    interface: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that each of its ranks is given."""
        interface = {} if self.interface is None else {"GLOO_SOCKET_IFNAME": self.interface}
        return {**self.environment, **interface}

    def command_of_agent(self, launcher: str) -> list[str]:
        """Return the command that starts parity/twins/processes/agent.py there.

        Its words have the same meaning to a shell, which `ssh` hands them to, as without one.

        Args:
          launcher: "paddle", "tensorflow" or "horovod", by whose variables ranks are started.
        """
        python = self.python.get(launcher, sys.executable)
        module = "parity.twins.processes.agent"
        return [*self.command, "env", "-C", self.folder, python, "-m", module]


@dataclass(frozen=True)
class HostList:
    """The hosts of a training.

    Attributes:
      path: the file that lists them.
      hosts: the hosts, this machine first.
      ports: the first and the last port that ranks may listen at; None for any free one.
    """

    path: Path
    hosts: tuple[Host, ...]
    ports: tuple[int, int] | None = None

    @property
    def ranks(self) -> int:
        """Return how many processes that compute gradients run on all hosts."""
        return sum(host.ranks for host in self.hosts)

    def check(self, workers: int) -> None:
        """Check that the hosts take so many processes that compute gradients.

        Raises:
          UsageError: if they do not.
        """
        if workers > self.ranks:
            raise UsageError(
                f"--processes is {workers}, but {self.path} has ranks for {self.ranks}; "
                "allowed: as many or fewer"
            )

    def places(self, jobs: Sequence[tuple[str, int]]) -> list[tuple[Host, list[int]]]:
        """Return the numbers of the processes that run on each host, this machine first.

        Those that compute gradients fill one host after another; others that serve are dealt
        out in turn. A rank 0 that drives workers is on this machine. Hosts that nothing is left
        for are left out.

        Args:
          jobs: the job of each process, and its number among those of the job.

        Raises:
          UsageError: if there are more than the hosts take.
        """
        works = WORKER if any(job == WORKER for job, _ in jobs) else RANK
        workers = sum(job == works for job, _ in jobs)
        self.check(workers)
        seats = [host for host in self.hosts for _ in range(host.ranks)][:workers]
        used = list({host.name: host for host in seats}.values())
        found: dict[str, list[int]] = {host.name: [] for host in used}
        for number, (job, index) in enumerate(jobs):
            host = used[index % len(used)]
            if job in (RANK, WORKER):
                host = seats[index] if job == works else used[0]
            found[host.name].append(number)
        return [(host, found[host.name]) for host in used]


def read_hosts(path: Path) -> HostList:
    """Return the hosts that a file lists; docs/many-machines.md describes it.

    Raises:
      UsageError: for a file that cannot be read or used, with the key and what is allowed.
    """
    try:
        values = tomllib.loads(read_file(path).decode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UsageError(
            f"{path}: nested too deeply; allowed: tables and lists of them"
        ) from None
    except ValueError as error:  # of TOML, with the line, or of UTF-8
        raise UsageError(f"{path}: {error}; allowed: TOML") from None
    table = _Table(f"{path}:", values, ("host", "ports"))
    allowed = "a table [[host]] for each host"
    listed = table.take("host", (list,), allowed)
    if listed is None:
        raise table.wrong("host", allowed)
    hosts = tuple(
        _host(f"{path}: host {number}", each, number) for number, each in enumerate(listed, 1)
    )
    _check_first(path, hosts)
    return HostList(path, hosts, _ports(table))


class _Table:
    """A table of the file, of which each value is taken with the types that it may have."""

    def __init__(self, where: str, values: Any, keys: tuple[str, ...]):
        self._where, self._values = where, values
        if not isinstance(values, dict):
            raise UsageError(f"{where} is {values!r}; allowed: a table")
        for key, value in values.items():
            if key not in keys:
                raise UsageError(
                    f"{where} has {key} = {value!r}; allowed keys: {', '.join(keys)}"
                )

    def take(self, key: str, kinds: tuple[type, ...], allowed: str, default: Any = None) -> Any:
        """Return a value that is neither empty nor of another type, or else the default."""
        if key not in self._values:
            return default
        value = self._values[key]
        if type(value) not in kinds or value in ("", [], {}):
            raise self.wrong(key, allowed)
        return value

    def wrong(self, key: str, allowed: str) -> UsageError:
        """Return the error of a value."""
        if key not in self._values:
            return UsageError(f"{self._where} has no {key}; allowed: {allowed}")
        return UsageError(
            f"{self._where} has {key} = {self._values[key]!r}; allowed: {allowed}"
        )


def _host(where: str, values: Any, number: int) -> Host:
    """Return one host; the first is this machine."""
    keys = ("address", "ranks", "command", "folder", "python", "interface", "environment")
    table = _Table(where, values, keys)
    allowed = "a name or an IPv4 address, without a port"
    address = table.take("address", (str,), allowed)
    if address is None or not _is_plain(address) or ":" in address or not is_host_name(address):
        raise table.wrong("address", allowed)
    ranks = table.take("ranks", (int,), "a number >= 1", 1)
    if ranks < 1:
        raise table.wrong("ranks", "a number >= 1")
    folder = table.take("folder", (str,), _FOLDER, _CHECKOUT)
    if not folder.startswith("/") or not _is_plain(folder):
        raise table.wrong("folder", _FOLDER)
    return Host(
        f"{where} ({address})",
        address,
        ranks,
        _command(table, address, number),
        folder,
        _python(table),
        table.take("interface", (str,), "the name of a network interface"),
        _environment(table),
    )


def _command(table: _Table, address: str, number: int) -> tuple[str, ...]:
    given = table.take("command", (str,), "a command that runs another one there")
    if number == 1:
        if given is not None:
            raise table.wrong("command", "none for the first host, which is this machine")
        return ()
    try:
        return tuple(shlex.split(given or f"{_SSH} {address}"))
    except ValueError as error:
        raise table.wrong("command", f"words as a shell takes them ({error})") from None


def _python(table: _Table) -> dict[str, str]:
    """Return the interpreter of each framework and launcher: one for all, or a table."""
    allowed = f"a path without spaces, or a table of them for {', '.join(_INTERPRETERS)}"
    given = table.take("python", (str, dict), allowed, {})
    if isinstance(given, str):
        given = dict.fromkeys(_INTERPRETERS, given)
    for name, path in given.items():
        if name not in _INTERPRETERS or not isinstance(path, str) or not _is_plain(path):
            raise table.wrong("python", allowed)
    return dict(given)


def _environment(table: _Table) -> dict[str, str]:
    given = table.take("environment", (dict,), "a table of texts", {})
    if not all(isinstance(value, str) for value in given.values()):
        raise table.wrong("environment", "a table of texts")
    return dict(given)


def _ports(table: _Table) -> tuple[int, int] | None:
    allowed = f"two numbers from 1 to {LAST_PORT}, the first and the last port"
    given = table.take("ports", (list,), allowed)
    if given is None:
        return None
    if len(given) != 2 or any(type(port) is not int for port in given):
        raise table.wrong("ports", allowed)
    first, last = given
    if not 1 <= first <= last <= LAST_PORT:
        raise table.wrong("ports", allowed)
    return first, last


def _check_first(path: Path, hosts: tuple[Host, ...]) -> None:
    """Check that the other hosts can reach the first one at its address."""
    first, *others = hosts
    away = [host for host in others if not is_loopback(host.address)]
    if away and is_loopback(first.address):
        raise UsageError(
            f"{path}: host 1 has address = {first.address!r}, which is this machine's own; "
            f"allowed: one by which {away[0].address} reaches it"
        )


def is_loopback(address: str) -> bool:
    """Return whether an address is a machine's own, where no other one is reached."""
    try:
        return socket.gethostbyname(address).startswith("127.")
    except OSError:  # whoever connects to it says so
        return False


def _is_plain(word: str) -> bool:
    """Return whether a word means the same to a shell as without one."""
    return bool(word) and shlex.quote(word) == word
