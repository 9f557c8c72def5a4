"""The processes of a training find each other, exchange arrays, and end together."""

import ast
import json
import os
import re
import signal
from pathlib import Path

import pytest
from conftest import run_python, wait_for
from started_ranks import StartedRanks

from parity.base.errors import RankLost, UsageError
from parity.twins.cli.options import TrainOptions
from parity.twins.launch import processes
from parity.twins.processes.group import ProcessGroup
from parity.twins.processes.launcher_variables import (
    MEETING,
    Members,
    Membership,
    meeting_point,
    membership,
    variables,
)
from parity.twins.processes.private_network import private_network
from parity.twins.spec.frameworks import strategies_named
from parity.twins.spec.strategies import StrategyEntry, StrategySettings, Traits
from parity.twins.sweep.random_strategies import comparable_choices
from parity.twins.training.process_group import process_group

ROOT = Path(__file__).resolve().parent.parent


def run(mode: str) -> tuple[int, str, str]:
    """Run three ranks; return status, output and what they print on stderr."""
    return StartedRanks(mode).wait()


def tf_config(workers, kind: str = "worker", index: object = 0, **others) -> dict[str, str]:
    """Return the variable of TensorFlow's launchers, for a task of this kind."""
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers} | others, "task": task})}


EXCHANGED = {
    "gathered": [0.0, 1.0, 2.0],
    "ranks": [0, 1, 2],
    "sent": [0, 1, 2],
    "parts": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    "state": [0, 1, 2, 3, 0, 0, 0, 0],
    "whole": [0, 1, 2, 3, 4, 5, 6, 7],
    "distances": {"w": [0.0] * 6, "b": [0.0] * 5 + [0.5]},
    "own": [0, 2],
}


def test_processes_that_serve_meet_take_no_part_and_end_with_the_ranks():
    status, output, errors = run("served")
    assert (status, errors) == (0, "")
    found, counts = map(ast.literal_eval, output.splitlines())
    assert found == EXCHANGED
    assert counts == [3, 3, 2]


@pytest.mark.parametrize(
    ("mode", "status", "message"),
    [
        ("killed", 4, r"rank 1 \(.*, process \d+\) is gone: its connection is closed"),
        ("rank 0 killed", 4, r"rank 0 was killed by SIGKILL"),
        ("stopped", 4, r"rank 2 \(.*, process \d+\) has been silent for \d s"),
        pytest.param(
            "stopped while much is sent",
            4,
            r"rank 2 \(.*, process \d+\) has been silent for \d s",
            marks=pytest.mark.thorough,
        ),
        ("refused", 2, r"rank 1 \(.*, process \d+\): the disk is full"),
        ("a server killed", 4, r"ps 1 \(.*, process \d+\) is gone: its connection is closed"),
        ("a server dead before", 4, r"ps 1 of 2 has not come to 127.0.0.1:\d+ within 4 s"),
        ("dead before", 4, r"rank 1 of 3 has not come to 127.0.0.1:\d+ within 4 s"),
        (
            "gone while others come",
            4,
            r"rank 1 \(.*, process \d+\) is gone before all had come",
        ),
        ("stopped before the meeting", 143, r"rank \d was stopped by SIGTERM"),
        (
            "nonsense",
            4,
            r"rank 1 \(.*, process \d+\) is gone: its tensors are no NumPy archive",
        ),
        (
            "left alone by gloo",
            4,
            r"rank \d (\(.*\): rank \d )?waited in vain for another: .* TIMEOUT .*",
        ),
        (
            "left alone by gRPC",
            4,
            r"rank \d (\(.*\): rank \d )?waited in vain for another: .*\"Unable to parse .*",
        ),
        (
            "another seed",
            2,
            r"rank 2 \(.*, process \d+\) has another seed than rank 0: 2 there, 1 here; "
            "allowed: the same on every rank",
        ),
    ],
)
def test_all_end_with_one_line_that_names_the_rank(mode, status, message):
    found, output, errors = run(mode)
    assert (found, output) == (status, "")
    assert re.fullmatch(f"error: {message}\n", errors), errors


def test_a_rank_that_stands_in_a_step_is_named_with_its_stack():
    status, _, errors = run("stands in a step")
    assert status == 4
    *stack, line = errors.splitlines()
    assert re.fullmatch(r"error: rank 1 \(.*, process \d+\) is in one step for \d+ s", line)
    assert any("ranks_alone.py" in each and " in act" in each for each in stack)
    assert all(each.startswith("rank 1: ") for each in stack)


def test_ranks_that_wait_for_each_other_in_their_engines_end_with_their_stacks():
    status, _, errors = run("stands while its engine starts")
    assert status == 4
    *stack, line = errors.splitlines()
    assert re.fullmatch(r"error: rank \d was killed by SIGALRM", line)
    assert any("ranks_alone.py" in each and " in act" in each for each in stack)


def test_processes_of_one_machine_have_a_network_of_their_own_or_a_warning(tmp_path):
    found = private_network("paddle")
    if found is not None:
        found.close()
        status, output, errors = run("tells its network")
        assert (status, errors) == (0, "")
        assert output.split()[0] != str(Path("/proc/self/ns/net").readlink())
    status, _, errors = run("warns")
    assert (status, errors == "") == (0, found is not None), errors


def test_a_private_network_needs_no_root_and_keeps_the_user():
    if private_network("paddle") is None:
        pytest.skip("this kernel lets nobody have a network of his own")
    done = run_python(
        ROOT / "tests" / "network_of_nobody.py",
        cwd=None,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (0, "refused\nreached\nthe same user\n"), (
        done.stderr
    )


def test_no_rank_outlives_its_supervisor():
    started = StartedRanks("stays")
    wait_for(lambda: len(started.running()) == 4)
    os.kill(started.process.pid, signal.SIGKILL)
    started.wait()


RANKS = Members(("a:1", "b:2"))
SERVED = Members(("a:1", "b:2"), {"ps": ("a:3", "c:4")})
DRIVEN = Members(("a:1",), {"worker": ("a:3", "b:4"), "ps": ("c:5",)})


@pytest.mark.parametrize(
    ("framework", "members"),
    [
        ("paddle", RANKS),
        ("tensorflow", RANKS),
        ("paddle", SERVED),
        ("tensorflow", SERVED),
        ("tensorflow", Members(("a:1",), {"ps": ("a:3",)})),
        ("tensorflow", DRIVEN),
    ],
)
def test_a_launchers_variables_make_a_process(framework, members):
    for number in range(len(members.jobs)):
        given = variables(framework, number, members, "a:9")
        found = membership(framework, given, tuple(members.served))
        assert found == Membership(number, members, "a:9")
    del given[MEETING]
    assert membership(framework, given, tuple(members.served)).meeting == "a:101"
    assert membership(framework, {}) is None
    assert meeting_point(["host:65500"]) == "host:65400"


def test_the_first_worker_is_rank_0_without_a_chief():
    cluster = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
    given = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})}
    members = Members(("a:1", "b:2"), {"ps": ("c:3",)})
    assert membership("tensorflow", given, ("ps",)) == Membership(2, members, "a:101")
    with pytest.raises(UsageError, match="a cluster with the jobs chief, ps, worker"):
        membership("tensorflow", given, ("worker", "ps"))
    with pytest.raises(UsageError, match="a cluster with the jobs worker, and"):
        membership("tensorflow", given)


# rank -> its place on its host, how many are there, its host's number, how many have that place
PLACES = [("0", "2", "0", "2"), ("1", "2", "0", "1"), ("0", "1", "1", "2")]


@pytest.mark.parametrize("rank", range(3))
def test_horovods_variables_tell_the_place_on_each_host(rank):
    found = variables("horovod", rank, Members(("first:1", "first:2", "second:1")), "first:3")
    kinds = "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"
    assert tuple(found[f"HOROVOD_{kind}"] for kind in kinds) == PLACES[rank]
    assert found["HOROVOD_HOSTNAME"] == ("second" if rank == 2 else "first")
    member = membership("horovod", found)
    assert (member.number, len(member.members.endpoints)) == (rank, 3)
    assert member.meeting == "first:3"
    assert membership("horovod", {"TF_CONFIG": "{}", "HOROVOD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("framework", "changes", "message"),
    [
        ("paddle", {"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID is '2'; allowed: 0 to 1"),
        ("paddle", {"PADDLE_TRAINER_ID": "x"}, "PADDLE_TRAINER_ID is 'x'; allowed: 0 to 1"),
        ("paddle", {"PADDLE_TRAINER_ENDPOINTS": "a:1,b"}, "allowed: host:port for each"),
        ("paddle", {MEETING: "first"}, "PARITY_MEETING is 'first'; allowed: host:port"),
        ("paddle", {MEETING: "..:80"}, "PARITY_MEETING is '..:80'; allowed: host:port"),
        ("tensorflow", {"TF_CONFIG": "["}, "allowed: JSON with cluster"),
        ("tensorflow", tf_config(["a:1"], index=0.7), "a task"),
        ("tensorflow", tf_config(["a:1"], index=False), "a task"),
        ("tensorflow", tf_config(["a:0"]), "host:port for each"),
        ("tensorflow", tf_config(["a:1"], "ps"), "a task that is one of them"),
        ("tensorflow", tf_config(["a:1"], chief=["b:1"]), "a task that is one of them"),
        # as enableDynamicWorker of Kubeflow's operator makes it
        ("tensorflow", tf_config({"0": "b:2222"}, ps=[]), "host:port for each"),
        ("horovod", {"HOROVOD_SIZE": "0"}, "HOROVOD_SIZE is '0'; allowed: the number of proc"),
        ("horovod", {"HOROVOD_SIZE": "many"}, "HOROVOD_SIZE is 'many'"),
        ("horovod", {"HOROVOD_RANK": "2"}, "HOROVOD_RANK is '2'; allowed: 0 to 1, since HO"),
        ("horovod", {"HOROVOD_RANK": "-1"}, "HOROVOD_RANK is '-1'"),
        ("horovod", {MEETING: "here"}, f"{MEETING} is 'here'; allowed: host:port"),
        ("horovod", {MEETING: ""}, "HOROVOD_RANK is set, but HOROVOD_GLOO_RENDEZVOUS_ADDR is"),
    ],
)
def test_variables_that_cannot_be_used_are_refused(framework, changes, message):
    given = variables(framework, 0, RANKS, "10.0.0.1:99") | changes
    with pytest.raises(UsageError, match=re.escape(message)):
        membership(framework, given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PADDLE_PORT": "9"}, "POD_IP and PADDLE_PORT are 'c:9'; allowed: one of"),
        ({"TRAINING_ROLE": "x"}, "TRAINING_ROLE is 'x' and PADDLE_TRAINER_ID ''; allowed:"),
        ({"PADDLE_TRAINER_ENDPOINTS": ""}, "PADDLE_TRAINER_ENDPOINTS is ['']; allowed:"),
    ],
)
def test_variables_of_a_paddle_server_that_cannot_be_used_are_refused(changes, message):
    given = variables("paddle", 3, SERVED, "a:9") | changes
    with pytest.raises(UsageError, match=re.escape(message)):
        membership("paddle", given, ("ps",))


def test_horovods_ranks_need_their_rendezvous_server_unless_there_is_one_alone():
    server = {"RENDEZVOUS_ADDR": "127.0.0.1", "RENDEZVOUS_PORT": "9"}
    given = {f"HOROVOD_GLOO_{name}": each for name, each in server.items()}
    given |= {"HOROVOD_SIZE": "2"}
    for rank in "01":
        with pytest.raises(RankLost, match=r"rendezvous server at 127\.0\.0\.1:9 is not to"):
            membership("horovod", given | {"HOROVOD_RANK": rank})
    alone = membership("horovod", given | {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"})
    assert len(alone.members.endpoints) == 1


def test_horovods_environment_is_taken_or_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setenv("PARITY_TENSORFLOW_PYTHON", "another")
    assert processes.interpreter("tensorflow", "towers") == "another"
    with pytest.raises(UsageError, match="run `make horovod` in the checkout"):
        processes.interpreter("tensorflow", "horovod")
    program = tmp_path / ".venv-horovod" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    assert processes.interpreter("tensorflow", "horovod") == str(program)
    # and no other strategy needs one, nor a sweep, which has one environment
    assert "horovod" not in [entry.name for entry in strategies_named(["all"])["tensorflow"]]
    (found,) = strategies_named(["horovod"])["tensorflow"]
    assert found.processes(StrategySettings(processes=3), 6) == 3
    with pytest.raises(UsageError, match=r"which runs in \.venv-horovod; allowed in a sweep"):
        comparable_choices({"tensorflow": [found]})


@pytest.mark.parametrize(
    ("hosts", "local_ranks"), [("aabb", [0, 1, 0, 1]), ("abab", [0, 0, 1, 1])]
)
def test_the_ranks_of_each_host_are_counted_from_zero(hosts, local_ranks):
    """By this number the processes of a host share its GPUs."""
    for rank, expected in enumerate(local_ranks):
        group = ProcessGroup()
        group.rank = rank
        group.endpoints = tuple(f"{host}:{7000 + i}" for i, host in enumerate(hosts))
        assert group.local_rank == expected
    assert ProcessGroup().local_rank == 0


def test_replicas_are_shared_evenly(monkeypatch):
    entry = StrategyEntry("several", "", "", Traits(processes=True))
    settings = StrategySettings(processes=3)
    with (
        pytest.raises(UsageError, match="--replicas is 4, which 3 processes cannot share"),
        process_group("paddle", entry, TrainOptions(replicas=4, settings=settings)),
    ):
        pass
    for name, value in variables("paddle", 0, RANKS, "10.0.0.1:99").items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UsageError, match="--processes is 3, but the launcher has started 2"),
        process_group("paddle", entry, TrainOptions(settings=settings)),
    ):
        pass
