"""The harness end to end: a match is reported whole, and no side outlives it."""

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from conftest import FRAMEWORKS, SIGNALS, assert_one_line, flags, start, wait_for

RUNGS = ["batch", "forward", "loss", "gradient", "optimizer", "weight", "evaluation"]


def run_flags(text, cache, out, **values) -> list[str]:
    given = {
        "data": text,
        "cache": cache,
        "out": out,
        "steps": 3,
        "replicas": 2,
    }
    return ["-m", "parity", "run", *flags(**given | {"optimizer": "adam"} | values)]


def finish(process) -> tuple[int, str, str]:
    said, errors = process.communicate(timeout=400)  # of a machine that is busy
    return process.returncode, said, errors


def trainings(process) -> dict[str, int]:
    """Return framework -> id of the process that trains it, once both have started.

    Each framework has a server, whose child waits for the training that it has forked.
    """

    found: dict[str, list[int]] = {}

    def all_there() -> bool:
        for server in children(process.pid):
            # its name is not there yet between fork and exec
            for name in {*FRAMEWORKS} & {*psutil.Process(server).cmdline()}:
                found[name] = [server]
                while below := children(found[name][-1]):
                    found[name].append(below[0])
        return [len(line) for line in found.values()] == [3, 3]

    wait_for(all_there, seconds=120)
    return {name: line[-1] for name, line in found.items()}


def children(pid: int) -> list[int]:
    """Return the processes that a process has started; none of one that has just ended."""
    try:
        return [each.pid for each in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def writes_to(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_run_matches_and_reports(text, cache, tmp_path):
    out, extra = tmp_path / "out", tmp_path / "new" / "extra.json"
    status, said, errors = finish(
        start(run_flags(text, cache, out, dtype="float64,float32", json=extra, throughput=True))
    )
    assert status == 0, errors
    # a line for each phase, and for a slow machine one every half minute
    assert list(dict.fromkeys(re.split("[:;]", line)[0] for line in errors.splitlines())) == [
        "1 of 5, starting the frameworks",
        "2 of 5, comparing, float64",
        "3 of 5, float64 steps match, resuming",
        "4 of 5, comparing, float32",
        "5 of 5, float32 steps match, untraced",
    ]
    report = json.loads((out / "report.json").read_text())
    assert json.loads(extra.read_text()) == report
    assert (out / "report.txt").read_text() == said
    assert said.splitlines()[-1].startswith("verdict: match")
    assert (report["verdict"], report["first_mismatch"]) == ("match", None)
    assert (report["network"], report["preset"]) == ("language-model", "tiny")
    assert (report["dtype"], report["steps"]) == (["float64", "float32"], 3)
    assert set(report["versions"]) >= {"paddle", "tensorflow", "numpy", "python"}
    assert list(report["rungs"]) == [*RUNGS, "resume", "repeat"]
    for name, rung in report["rungs"].items():
        assert set(rung) >= {"worst_absolute", "worst_relative", "where", "allowed"}
        assert rung["worst_relative"] < 1e-10
        if name != "repeat":  # the same bits, so nowhere worse than elsewhere
            assert set(rung["where"]) == {"step", "tensor", "index"}
        assert re.search(rf"^float64 +{name} ", said, re.MULTILINE)
    (_, single) = report["runs"]
    assert list(single["rungs"]) == [*RUNGS, "untraced", "counting"]
    checks = [
        {
            each["name"].removesuffix(" checked"): each["count"]
            for each in run["coverage"]
            if each["name"].endswith(" checked") and each["applies"]
        }
        for run in report["runs"]
    ]
    made = [{name for name, count in counts.items() if count} for counts in checks]
    assert set(checks[0]) == {"evaluation", "resume", "repeat", "untraced", "counting"}
    assert made == [{"evaluation", "resume", "repeat"}, {"evaluation", "untraced", "counting"}]
    assert not {f"{name} checked" for name in checks[0]} & set(report["not_covered"])
    double, _ = report["runs"]
    assert double["unchecked"]["answers"] == "this network writes no answers"
    assert "answers: this network writes no answers" in " ".join(said.split())
    for run, name in ((double, "repeat"), (single, "counting")):
        assert run["rungs"][name]["worst_absolute"] == 0
    assert single["rungs"]["untraced"]["used"] < 0.5
    assert 1e-9 < single["rungs"]["weight"]["worst_relative"] < 1e-3, "float32 is measured too"
    for framework in FRAMEWORKS:
        speed = report["throughput"][framework]
        low, high = speed["spread"]
        assert 0 < low <= speed["median"] <= high
        assert (speed["replicas"], speed["dtype"]) == (2, "float32")
    # tensors are removed, and the logs are free of the frameworks' own messages
    assert not list(out.glob("traces/*/*"))
    noise = [path for path in (out / "logs").iterdir() if "oneDNN" in path.read_text()]
    assert noise == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in (signal.SIGTERM, signal.SIGHUP)
        ),
    ],
    ids=lambda number: number.name,
)
def test_no_side_outlives_a_stopped_harness(text, cache, tmp_path, number):
    process = start(run_flags(text, cache, tmp_path, steps=100_000), start_new_session=True)
    sides = trainings(process).values()
    if number == signal.SIGTERM:  # as `timeout` and service managers send it
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    status, _, errors = finish(process)
    if number in SIGNALS:
        assert_one_line(status, errors, SIGNALS[number])
    else:
        assert status == -number
    wait_for(lambda: not any(alive(pid) for pid in sides), seconds=5)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("sweep", signal.SIGTERM),
        pytest.param("faults", signal.SIGINT, marks=pytest.mark.thorough),
    ],
)
def test_what_runs_several_jobs_does_not_wait_for_them(tmp_path, command, number):
    """A training stands still, and would never end."""
    process = start(["-m", "parity", command, f"--out={tmp_path}"])
    found: list[int] = []

    def one_trains() -> bool:
        between = [each for server in children(process.pid) for each in children(server)]
        started = [training for each in between for training in children(each)]
        # it has its own output once it is bound to its parents
        found[:] = [each for each in started if writes_to(each).endswith("/stdout")]
        return bool(found)

    wait_for(one_trains, seconds=120)
    os.kill(found[0], signal.SIGSTOP)
    os.kill(process.pid, number)
    assert_one_line(*finish(process)[::2], SIGNALS[number])
    wait_for(lambda: not alive(found[0]), seconds=5)


def test_a_side_that_is_killed_is_named(text, cache, tmp_path):
    process = start(run_flags(text, cache, tmp_path, steps=100_000))
    sides = trainings(process)
    os.kill(sides["paddle"], signal.SIGKILL)
    line = assert_one_line(*finish(process)[::2], 128 + signal.SIGKILL)
    assert "paddle ended with signal SIGKILL" in line
    assert not any(alive(pid) for pid in sides.values())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/nowhere/python", "/nowhere/python: cannot be started"),
        ("/bin/true", "/bin/true ended before it had loaded paddle"),
        ("/bin/cat", "; it said: Try '/bin/cat --help' for more information."),
        ("./removes", "was removed while paddle ran"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_named(text, cache, tmp_path, program, said):
    if program == "./removes":  # the folder of its own socket, and goes on
        program = tmp_path / "removes"
        program.write_text('#!/bin/sh\nrm -r "$(dirname "$5")"\nexec sleep 1000\n')
        program.chmod(0o755)
    environment = os.environ | {"PARITY_PADDLE_PYTHON": str(program)}
    process = start(run_flags(text, cache, tmp_path), env=environment)
    assert said in assert_one_line(*finish(process)[::2])
