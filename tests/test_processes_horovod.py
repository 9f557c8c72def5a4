"""How a process knows its rank from Horovod's launcher; none of this needs Horovod."""

import pytest

from parity.base.errors import RankLost, UsageError
from parity.twins.launch import processes
from parity.twins.launch.processes import interpreter
from parity.twins.processes.launcher_variables import MEETING, Members, membership, variables
from parity.twins.spec.frameworks import strategies_named
from parity.twins.spec.strategies import StrategySettings
from parity.twins.sweep.random_strategies import comparable_choices

# two processes on one host, and one on another
HOSTS = Members(("first:1", "first:2", "second:1"))
PLACES = {
    0: ("0", "2", "0", "2"),
    1: ("1", "2", "0", "1"),
    2: ("0", "1", "1", "2"),
}  # rank -> its place on its host, how many are there, and the same across hosts
SERVER = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "9"}


@pytest.mark.parametrize("rank", PLACES)
def test_variables_make_a_process_the_rank_that_they_name(rank):
    found = variables("horovod", rank, HOSTS, "first:3")
    place, count, across, hosts = PLACES[rank]
    assert found == {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": place,
        "HOROVOD_LOCAL_SIZE": count,
        "HOROVOD_CROSS_RANK": across,
        "HOROVOD_CROSS_SIZE": hosts,
        "HOROVOD_HOSTNAME": "second" if rank == 2 else "first",
        MEETING: "first:3",
    }
    member = membership("horovod", found)
    assert member is not None
    assert (member.number, len(member.members.endpoints), member.meeting) == (
        rank,
        3,
        "first:3",
    )


def test_a_process_without_the_variables_is_no_rank():
    assert membership("horovod", {"TF_CONFIG": "{}", "HOROVOD_SIZE": "2"}) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"HOROVOD_SIZE": "0"}, "HOROVOD_SIZE is '0'; allowed: the number of processes"),
        ({"HOROVOD_SIZE": "many"}, "HOROVOD_SIZE is 'many'"),
        ({"HOROVOD_SIZE": "9" * 20}, "HOROVOD_SIZE is '999"),
        ({"HOROVOD_RANK": "9" * 5000}, "HOROVOD_RANK is '999"),
        (
            {"HOROVOD_RANK": "2"},
            "HOROVOD_RANK is '2'; allowed: 0 to 1, since HOROVOD_SIZE is 2",
        ),
        ({"HOROVOD_RANK": "-1"}, "HOROVOD_RANK is '-1'"),
        ({MEETING: "here"}, f"{MEETING} is 'here'; allowed: host:port"),
        ({}, "HOROVOD_RANK is set, but HOROVOD_GLOO_RENDEZVOUS_ADDR is ''"),
    ],
)
def test_variables_that_cannot_be_used_are_refused(given, said):
    with pytest.raises(UsageError, match=said):
        membership("horovod", {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"} | given)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_server_that_is_gone_is_named(rank):
    ranks = {"HOROVOD_RANK": rank, "HOROVOD_SIZE": "2"}
    with pytest.raises(RankLost, match=r"rendezvous server at 127\.0\.0\.1:9 is not to be"):
        membership("horovod", ranks | SERVER)


def test_a_single_process_needs_no_server_to_be_there():
    ranks = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}
    member = membership("horovod", ranks | SERVER)
    assert member is not None
    assert len(member.members.endpoints) == 1


def test_the_environment_of_a_strategy_is_taken_or_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setenv("PARITY_TENSORFLOW_PYTHON", "another")
    assert interpreter("tensorflow", "towers") == "another"
    with pytest.raises(UsageError, match="run `make horovod` in the checkout"):
        interpreter("tensorflow", "horovod")
    program = tmp_path / ".venv-horovod" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    assert interpreter("tensorflow", "horovod") == str(program)


def test_all_strategies_are_those_of_the_usual_environment():
    assert "horovod" not in [entry.name for entry in strategies_named(["all"])["tensorflow"]]
    (found,) = strategies_named(["horovod"])["tensorflow"]
    assert found.accepted_settings == ("processes",)
    assert found.processes(StrategySettings(processes=3), 6) == 3
    with pytest.raises(UsageError, match=r"which runs in \.venv-horovod; allowed in a sweep"):
        comparable_choices({"paddle": ["data-parallel"], "tensorflow": ["horovod"]})
