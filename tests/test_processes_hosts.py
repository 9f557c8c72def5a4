"""Processes of a training are started on several hosts, and end together wherever they are."""

import ast
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest
from conftest import COLLECTIVE, FOLDERS, FRAMEWORKS, assert_one_line, flags, start
from started_ranks import SCRIPT, StartedRanks

from parity.base.errors import UsageError
from parity.twins.cli.options import RunOptions
from parity.twins.launch.processes import ROOT
from parity.twins.processes.hosts import read_hosts
from parity.twins.processes.launcher_variables import RANK, SERVER, WORKER, free_ports
from parity.twins.run.choose_sides import of_hosts
from parity.twins.spec.strategies import StrategySettings

FIRST = """
[[host]]
address = "127.0.0.1"
"""
# the same machine, where a process is started by a command of its own
SECOND = """
[[host]]
address = "127.0.0.1"
ranks = 2
command = "env"
"""


@pytest.fixture
def hosts(tmp_path):
    """Return a function that writes a file of two hosts and returns its path."""

    def write(second: str = SECOND, first: str = FIRST) -> Path:
        path = tmp_path / "hosts.toml"
        path.write_text(first + second)
        return path

    return write


def test_ranks_of_several_hosts_exchange_arrays(hosts):
    status, output, errors = StartedRanks("served", hosts()).wait()
    assert (status, errors) == (0, "")
    assert ast.literal_eval(output.splitlines()[0])["ranks"] == [0, 1, 2]


def test_no_rank_of_any_host_outlives_its_supervisor(hosts):
    # a shell between them, as a connection is: the kernel tells nobody that the parent is gone
    between = SECOND.replace('"env"', "\"sh -c '$@; exit' sh\"")
    started = StartedRanks("stays", hosts(between))
    assert started.process.stdout.readline() == "ready\n"
    # the supervisor, a rank; the shell, what has started the others, and two of them
    assert len(started.running()) == 6
    there = [
        each
        for each in psutil.Process(started.process.pid).children(recursive=True)
        if SCRIPT.name in " ".join(each.cmdline()) and each.ppid() != started.process.pid
    ]
    assert len(there) == 2
    for each in there:
        each.suspend()  # or they would end by themselves, when rank 0 does
    os.kill(started.process.pid, signal.SIGKILL)
    started.wait()


def test_all_ranks_end_when_what_has_started_them_is_lost(hosts):
    """As when a connection is cut, or a host switched off."""
    started = StartedRanks("stays", hosts())
    assert started.process.stdout.readline() == "ready\n"
    agent = [each for each in started.running() if b"agent" in arguments(each)]
    assert len(agent) == 1
    os.kill(agent[0], signal.SIGKILL)
    status, _, errors = started.wait()
    assert status == 4
    assert re.fullmatch(r"error: rank \d \(.*\) is gone: its connection is closed\n", errors)


def arguments(process: int) -> bytes:
    """Return the command line of a process."""
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_a_signal_reaches_each_rank_once(hosts):
    started = StartedRanks("counts signals", hosts())
    assert started.process.stdout.readline() == "ready\n"
    os.kill(started.process.pid, signal.SIGTERM)
    status, output, errors = started.wait()
    assert (status, errors, output) == (0, "", "[1, 1, 1]\n")


@pytest.mark.parametrize(
    ("second", "status", "message"),
    [
        (
            "command = \"sh -c 'echo no route >&2; exit 255'\"",
            4,
            r"{second} cannot be reached: sh -c .* parity.twins.processes.agent ended with "
            "status 255: no route",
        ),
        (
            "command = \"sh -c 'sleep 60'\"",
            4,
            r"{second} has not answered within 2 s: sh -c 'sleep 60' env -C .*",
        ),
        ('command = "no-such-command"', 2, "{second}: no-such-command cannot be started: .*"),
        (
            "command = \"sh -c 'exec $@ </dev/null' sh\"",
            4,
            "{second} cannot be reached: .* ended with status 1: its stdin is closed; the "
            "command must pass stdin on, such as docker exec -i",
        ),
        (
            'command = "env"\naddress = "192.0.2.1"',
            2,
            "{second}: '192.0.2.1' is no address of this host .*",
        ),
    ],
)
def test_a_host_that_cannot_be_used_is_named_in_one_line(second, status, message, hosts):
    own = "" if "address" in second else 'address = "127.0.0.1"\n'
    first = FIRST.replace("127.0.0.1", "localhost") if own else FIRST
    address = "127.0.0.1" if own else "192.0.2.1"
    path = hosts(f"[[host]]\nranks = 2\n{own}{second}\n", first)
    if not own:  # or it would be refused before
        path = hosts(f"[[host]]\nranks = 2\n{second}\n", first.replace("127.0.0.1", "0.0.0.0"))
    seconds = "2" if "sleep" in second else "40"
    found, output, errors = StartedRanks("exchange", path, ANSWER_SECONDS=seconds).wait()
    expected = message.replace("{second}", re.escape(f"{path}: host 2 ({address})"))
    assert (found, output) == (status, "")
    assert re.fullmatch(f"error: {expected}\n", errors), errors


def test_a_host_that_is_not_this_one_cannot_be_the_first(hosts):
    path = hosts(first=FIRST.replace("127.0.0.1", "192.0.2.1"))
    line = assert_one_line(*StartedRanks("exchange", path).wait()[::2])
    assert f"{path}: host 1 (192.0.2.1): '192.0.2.1' is no address of this host" in line


def test_lost_ranks_are_started_again_on_all_hosts(hosts):
    status, _, errors = StartedRanks("killed", hosts(), restarts=1).wait()
    assert status == 4
    assert errors.count("is gone") == 2
    assert "starting again from the newest checkpoint, 1 of 1 times" in errors


A = "[[host]]\naddress = 'a'\n"
AWAY = SECOND.replace("127.0.0.1", "192.0.2.1")
PORTS = "allowed: two numbers from 1 to 65535"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "has no host; allowed: a table [[host]] for each host"),
        ("[[host]", "line 1"),
        ("host = 3", "has host = 3; allowed: a table [[host]]"),
        ("[[host]]\nranks = 1", "host 1 has no address; allowed: a name or"),
        ("[[host]]\naddress = ''", "host 1 has address = ''; allowed: a name or"),
        ("[[host]]\naddress = 'a:1'", "host 1 has address = 'a:1'; allowed: a name or"),
        ("[[host]]\naddress = 'a..b'", "host 1 has address = 'a..b'; allowed: a name or"),
        (A + "slots = 2", "host 1 has slots = 2; allowed keys: address, ranks, command,"),
        (A + "ranks = 0", "host 1 has ranks = 0; allowed: a number >= 1"),
        (A + "command = 'b'", "host 1 has command = 'b'; allowed: none for the first host"),
        (A + A + "command = 'b \"'", "host 2 has command = 'b \"'; allowed: words"),
        (A + "folder = 'here'", "host 1 has folder = 'here'; allowed: an absolute path"),
        (A + "python = {jax = 'p'}", "host 1 has python = {'jax': 'p'}; allowed: a path"),
        (A + "interface = ''", "host 1 has interface = ''; allowed: the name of a network"),
        (A + "environment = {B = 1}", "host 1 has environment = {'B': 1}; allowed: a table"),
        ("ports = [3, 2]\n" + A, f"has ports = [3, 2]; {PORTS}"),
        (
            FIRST + AWAY,
            "host 1 has address = '127.0.0.1', which is this machine's own; allowed",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_key(text, message, tmp_path):
    path = tmp_path / "hosts.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_hosts(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_host_has_what_the_file_says(hosts):
    text = 'python = {paddle = "/p"}\ninterface = "eth1"\nenvironment = {A = "b"}\n'
    own = FIRST.replace("127.0.0.1", "10.0.0.1")
    found = read_hosts(hosts(f"[[host]]\naddress = 'second'\nfolder = '/f'\n{text}", own))
    first, second = found.hosts
    assert (first.command, first.folder, found.ports) == ((), str(ROOT), None)
    assert second.variables == {"A": "b", "GLOO_SOCKET_IFNAME": "eth1"}
    words = second.command_of_agent("paddle")
    assert words[0] == "ssh"
    assert " ".join(words[-7:]) == "second env -C /f /p -m parity.twins.processes.agent"
    assert second.command_of_agent("tensorflow")[-3] == sys.executable
    of_all = read_hosts(hosts(AWAY + "python = '/p'", own)).hosts[1]
    of_horovod = read_hosts(hosts(AWAY + "python = {horovod = '/h'}", own)).hosts[1]
    assert of_all.command_of_agent("horovod")[-3] == "/p"
    assert of_horovod.command_of_agent("horovod")[-3] == "/h"
    assert of_horovod.command_of_agent("tensorflow")[-3] == sys.executable
    given = read_hosts(hosts(first=f"ports = [20000, 20099]\n{FIRST}"))
    assert given.ports == (20000, 20099)
    assert given.hosts[1].command_of_agent("paddle")[:2] == ["env", "env"]


def test_processes_fill_the_hosts_in_their_order(hosts):
    third = SECOND.replace("ranks = 2", "ranks = 1")
    found = read_hosts(hosts(SECOND + third))

    def places(**counts):
        jobs = [(job, index) for job, count in counts.items() for index in range(count)]
        return [numbers for _, numbers in found.places(jobs)]

    assert places(**{RANK: 4}) == [[0], [1, 2], [3]]
    assert places(**{RANK: 2}) == [[0], [1]]
    assert places(**{RANK: 3, SERVER: 3}) == [[0, 3, 5], [1, 2, 4]]
    # rank 0 drives the workers, and is no worker itself
    assert places(**{RANK: 1, WORKER: 4, SERVER: 1}) == [[0, 1, 5], [2, 3], [4]]
    with pytest.raises(UsageError, match=r"--processes is 5, but .* has ranks for 4; allowed"):
        places(**{RANK: 5})


def test_ports_come_from_the_range_that_is_given():
    assert set(free_ports("127.0.0.1", 3, (23456, 23458))) == {23456, 23457, 23458}
    with pytest.raises(UsageError, match="2 of 3 ports from 23456 to 23457 are free"):
        free_ports("127.0.0.1", 3, (23456, 23457))


def test_a_run_has_as_many_replicas_as_its_hosts_have_ranks(hosts):
    assert of_hosts(RunOptions()).replicas == (1, 2, 3)
    words = tuple(f"{name}={each}" for name, each in COLLECTIVE.items())
    options = of_hosts(RunOptions(hosts=hosts(), strategy=words))
    assert (options.replicas, options.settings.processes) == ((3,), 3)
    given = RunOptions(
        hosts=hosts(), strategy=words, settings=StrategySettings(processes=2), replicas=(2, 4)
    )
    assert of_hosts(given).replicas == (2, 4)
    with pytest.raises(UsageError, match=r"--processes is 4, but .* has ranks for 3"):
        of_hosts(
            RunOptions(hosts=hosts(), strategy=words, settings=StrategySettings(processes=4))
        )
    with pytest.raises(
        UsageError, match=r"--hosts is .*; not allowed for the strategy parallel"
    ):
        of_hosts(RunOptions(hosts=hosts()))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_hosts_are_refused_for_one_process(name, hosts, frameworks, text):
    job = frameworks[name].train(*flags(data=text, hosts=hosts()))
    line = assert_one_line(*job.wait()[::2])
    assert re.search(r"--hosts is .*hosts.toml; not allowed for the strategy", line)


@pytest.mark.thorough
def test_another_host_has_a_checkout_of_its_own(hosts, text, frameworks, tmp_path):
    """Its ranks have the numbers of one machine, and write nothing but their cache."""
    name = "paddle"
    there = tmp_path / "there"
    for folder in ("parity", "data", *FOLDERS.values()):
        shutil.copytree(ROOT / folder, there / folder)
    before = {path for path in there.rglob("*") if "__pycache__" not in path.parts}
    path = hosts(SECOND.replace("ranks = 2", f'folder = "{there}"'))
    here = tmp_path / "here"
    here.mkdir()
    given = {"strategy": COLLECTIVE[name], "data": text, "steps": 12, "threads": 1}
    script = ROOT / FOLDERS[name] / "train.py"
    words = flags(**given, hosts=path, cache="cache", out="out", checkpoint_every=5)
    started = start([script, *words], cwd=here)
    errors = started.communicate(timeout=200)[1]
    assert started.returncode == 0, errors
    after = {path for path in there.rglob("*") if "__pycache__" not in path.parts}
    assert after > before
    assert all(path.is_relative_to(there / "cache") for path in after - before)
    job = frameworks[name].train(
        *flags(**given, processes=2, cache=tmp_path / "cache", out=tmp_path / "one")
    )
    assert job.wait()[0] == 0
    tables = [each / "losses.csv" for each in (here / "out", tmp_path / "one")]
    assert tables[0].read_bytes() == tables[1].read_bytes()
