"""The files of deploy/ name what is there, and start real ranks."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import operator_pods
import pytest
import two_hosts
import yaml
from conftest import COLLECTIVE, flags
from test_docs import check_command, check_script

from parity.twins.processes.launcher_variables import membership
from parity.twins.training.loss_table import read_losses

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
RANK = DEPLOY / "slurm" / "rank.sh"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
DOCUMENTS = [
    each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
JOBS = {
    {"TFJob": "tensorflow", "PaddleJob": "paddle"}[each["kind"]]: each
    for each in DOCUMENTS
    if each["apiVersion"] == "kubeflow.org/v1"
}
SCRIPTS = {"paddle": "paddle_impl/train.py", "tensorflow": "tf_impl/train.py"}
LAUNCHER = ["python", "-m", "paddle.distributed.launch"]
STEPS = 8


def words_of(job) -> list[str]:
    """Return the command line of a job's container."""
    container = operator_pods.container(job)
    return [*container["command"], *container["args"]]


def test_pods_run_commands_that_there_are(name):
    words = words_of(JOBS[name])
    if name == "paddle":
        assert words[:3] == LAUNCHER
        words = ["python", *words[words.index(SCRIPTS[name]) :]]
    assert words[:2] == ["python", SCRIPTS[name]]
    check_script(words[1], words[2:])
    assert f"--strategy={COLLECTIVE[name]}" in words
    assert f"--replicas={operator_pods.workers(JOBS[name])['replicas']}" in words
    assert "--resume" in words  # a container that starts again goes on


def test_only_the_pods_of_a_job_reach_each_other(name):
    own = {"training.kubeflow.org/job-name": JOBS[name]["metadata"]["name"]}
    rules = [
        each["spec"]
        for each in DOCUMENTS
        if each["kind"] == "NetworkPolicy" and each["spec"]["podSelector"]["matchLabels"] == own
    ]
    allowed = [{"from": [{"podSelector": {"matchLabels": own}}]}]
    assert [(each["policyTypes"], each["ingress"]) for each in rules] == [
        (["Ingress"], allowed)
    ]


def test_what_the_operator_sets_makes_ranks_of_tensorflow():
    job = JOBS["tensorflow"]
    for index in range(2):
        found = membership("tensorflow", operator_pods.variables(job, index, "10.0.0.1"))
        assert found.number == index
        assert list(found.members.endpoints) == [
            "parity-tensorflow-worker-0.team.svc:2222",
            "parity-tensorflow-worker-1.team.svc:2222",
        ]
        ports = {each["name"]: each for each in operator_pods.container(job)["ports"]}
        meeting = ports["parity-meeting"]["containerPort"]
        assert found.meeting == f"parity-tensorflow-worker-0.team.svc:{meeting}"


@pytest.mark.thorough
@pytest.mark.hosts
def test_two_pods_train_as_one_job(name, text, cache, tmp_path):
    """The manifest's own command, with the operator's variables, in two network namespaces."""
    job, ended = JOBS[name], []
    with operator_pods.pods(job) as pods:
        for index, (inside, address) in enumerate(zip(pods, two_hosts.ADDRESSES, strict=True)):
            here = {"data": text, "cache": cache, "steps": STEPS, "resume": ""}
            here["out"] = tmp_path / f"rank{index}"
            words = [sys.executable, *words_of(job)[1:], *flags(**here)]
            if name == "paddle":
                log = next(each for each in words if each.startswith("--log_dir="))
                words[words.index(log)] = f"--log_dir={tmp_path / f'log{index}'}"
            given = operator_pods.variables(job, index, address)
            ended.append(start([*inside, *words], given))
        printed = [each.communicate(timeout=240)[0] for each in ended]
    assert [each.returncode for each in ended] == [0, 0], printed
    assert len(read_losses(tmp_path / "rank0" / "losses.csv")) == STEPS
    assert not (tmp_path / "rank1").exists()  # rank 0 alone writes


def start(words: list[str], given: dict[str, str], folder: Path = ROOT) -> subprocess.Popen:
    """Start a process with variables that are added to this one's."""
    return subprocess.Popen(
        words,
        cwd=folder,
        env=os.environ | {"PYTHON": sys.executable} | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def slurm_variables(nodes: list[str], per_node: int, task: int) -> dict[str, str]:
    """Return what Slurm sets in a task of a job, and the script in all of them."""
    return {
        "PARITY_NODES": "\n".join(nodes),
        "SLURM_JOB_ID": "12345",
        "SLURM_NTASKS": str(len(nodes) * per_node),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_PROCID": str(task),
    }


def test_tasks_of_slurm_become_ranks(name, tmp_path):
    script = tmp_path / SCRIPTS[name]
    script.parent.mkdir()
    script.write_text(
        "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    for task in range(4):
        given = slurm_variables(["node-1", "node-2"], 2, task)
        done = start(["bash", str(RANK), SCRIPTS[name], "--out=a b"], given, tmp_path)
        words, environment = json.loads(done.communicate()[0])
        found = membership(name, environment)
        assert (found.number, words, done.returncode) == (task, ["--out=a b"], 0)
        ports = [19000, 19001]
        assert list(found.members.endpoints) == [f"node-{i}:{p}" for i in (1, 2) for p in ports]
        assert found.meeting == "node-1:19100"


@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        ("paddle_impl/train.py", {"SLURM_NTASKS": "3"}, "has 3 tasks; allowed: 2, which are 1"),
        ("train.py", {}, "the script is train.py; allowed: paddle_impl/train.py, tf_impl"),
    ],
)
def test_tasks_of_slurm_that_are_no_ranks_are_refused(script, changes, message):
    given = slurm_variables(["node-1", "node-2"], 1, 0) | changes
    done = start(["bash", str(RANK), script], given)
    printed = done.communicate()[0]
    assert (done.returncode, printed.count("\n")) == (2, 1), printed
    assert message in printed


def test_scripts_pass_shellcheck():
    scripts = [*sorted((DEPLOY / "slurm").iterdir()), ROOT / ".ci" / "run"]
    program = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [str(program), *map(str, scripts)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_images_are_made_of_files_that_there_are():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [line.split(maxsplit=1) for line in lines]
    stages = [rest.split()[-1] for kind, rest in instructions if kind == "FROM"]
    assert {"cpu", "gpu"} < {*stages}
    for kind, rest in instructions:
        words = [word for word in shlex.split(rest) if not word.startswith("--")]
        sources = re.findall(r"--from=(\S+)", rest)
        if kind == "COPY" and not sources:
            assert all((ROOT / word).exists() for word in words[:-1]), rest
        elif kind == "COPY":
            assert {*sources} <= {*stages}, rest
        elif kind == "RUN" and rest.startswith("make"):
            check_command(words[:3])
        elif kind == "CMD":
            check_command(json.loads(rest))
