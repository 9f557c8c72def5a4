"""A process is stopped, or fails, at each change that it makes to files, one after the other.

After each, the newest checkpoint is whole, and training goes on to the same bits; a cache, a
trace and a download are whole, or made again. The trainers of both frameworks are stopped at
some changes, as the code that writes their files is that of the training in NumPy; with
PARITY_EVERY_CRASH set, as by `make crashes`, at all of them.
"""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_same_end, flags, write_pairs, write_text

from parity.base.files import UNFINISHED
from parity.trace.reader import Trace
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import ROOT
from parity.twins.training.checkpoint import newest_checkpoint

pytestmark = [pytest.mark.compiler, pytest.mark.thorough]
HOWS = ("exit", "ENOSPC", "EIO")
ENDED = 99  # the status with which tests/crash.c ends a process
ALL = bool(os.environ.get("PARITY_EVERY_CRASH"))
# a full disk and a broken one are the same to the code; a trainer is tried with both
MOST = HOWS if ALL else HOWS[:2]
SAMPLE = {"exit": 2, "ENOSPC": 1, "EIO": 1}  # changes of each trainer that are tried


@pytest.fixture
def place():
    """Return a folder in memory, where there is one: each test writes thousands of files."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        dir=memory if os.access(memory, os.W_OK) else None
    ) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compile tests/crash.c."""
    path = tmp_path_factory.mktemp("crash") / "crash.so"
    source = ROOT / "tests" / "crash.c"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, source, "-ldl"]
    subprocess.run([*map(str, command)], check=True)
    return path


def environment(under, number, how, log=None) -> dict[str, str]:
    given = {"CRASH_UNDER": str(under), "CRASH_AT": str(number), "CRASH_HOW": how}
    return given | ({} if log is None else {"CRASH_LOG": str(log)})


class Worker:
    """Runs the tasks of tests/crash_worker.py."""

    def __init__(self, library, folder):
        self._stderr, self._log = folder / "stderr", folder / "log"
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "crash_worker.py"],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ
            | {
                "LD_PRELOAD": str(library),
                "PYTHONPATH": str(ROOT),
                "OPENBLAS_NUM_THREADS": "1",
                "NO_PROXY": "127.0.0.1",
            },
        )

    def run(self, task, *arguments, **given) -> tuple[int, str]:
        """Run a task in a process of its own; return its status and what it said."""
        request = {"task": task, "arguments": arguments, "environment": given}
        line = json.dumps({**request, "stderr": str(self._stderr)}, default=str)
        print(line, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline()), self._stderr.read_text()

    def changes(self, under, task, *arguments) -> list[str]:
        """Run a task to its end, and return the changes that it makes."""
        self._log.unlink(missing_ok=True)
        status, said = self.run(task, *arguments, **environment(under, 0, "exit", self._log))
        assert status == 0, said
        return self._log.read_text().splitlines()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="module")
def worker(library, tmp_path_factory):
    started = Worker(library, tmp_path_factory.mktemp("worker"))
    yield started
    started.close()


def check_end(how: str, status: int, said: str) -> None:
    """See that a process was stopped, or has told of its error in one line, or needed not."""
    assert "Traceback" not in said, said
    if how == "exit":
        assert status == ENDED, said
    else:
        assert status in (0, 2), (status, said)
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(lines) == (status == 2), said


def check_finished(out: Path, whole: Path) -> None:
    """See that a run has ended as the unbroken one, and left nothing else behind."""
    assert_same_end(out, whole)
    assert not list(out.rglob(f"{UNFINISHED}*"))
    assert not (out / ".lock").exists()


def whole_checkpoint(out: Path) -> bool:
    """Return whether there is a checkpoint; no file of one is ever damaged."""
    notes: list[str] = []
    found = newest_checkpoint(out / "checkpoints", notes)
    assert notes == []
    return found is not None


def stopped_at_each_change(worker, how, count, out, task, begun=None):
    """Run a task once for each of its changes, stopped there, and yield after each.

    Args:
      task: function from a folder to the task's name and arguments.
      begun: a folder to begin with a copy of; None for no folder.
    """
    for number in range(1, count + 1):
        shutil.rmtree(out, ignore_errors=True)
        if begun:
            shutil.copytree(begun, out)
        check_end(how, *worker.run(*task(out), **environment(out, number, how)))
        yield number


def finished(worker, *task) -> None:
    """Run a task that nothing stops."""
    status, said = worker.run(*task)
    assert (status, "Traceback" in said) == (0, False), said


@pytest.mark.parametrize("how", MOST)
@pytest.mark.parametrize("resumes", [False, True], ids=["begun", "resumed"])
def test_a_training_goes_on_to_the_same_bits(worker, place, how, resumes):
    """One that was resumed has a checkpoint to lose, and removes old ones."""
    whole, begun, out = (place / name for name in ("whole", "begun", "out"))

    def task(folder):
        return "train", folder, resumes

    count = len(worker.changes(whole, "train", whole, False))
    assert count > 60
    if resumes:
        shutil.copytree(whole, begun)
        for name in ("step-00000004.safetensors", "latest"):
            (begun / "checkpoints" / name).unlink()
        shutil.copytree(begun, out)
        count = len(worker.changes(out, *task(out)))
    before = begun if resumes else None
    for _ in stopped_at_each_change(worker, how, count, out, task, before):
        saved, began = whole_checkpoint(out), (out / "run.json").exists()
        assert saved or not resumes
        finished(worker, "train", out, saved or began)
        check_finished(out, whole)


@pytest.fixture
def texts(place):
    """Return folders of a text and of pairs."""
    write_text(place / "text", 100, other_tokens=100)
    (place / "pairs").mkdir()
    write_pairs(place / "pairs")
    return place


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that count: path -> content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and UNFINISHED not in str(path) and path.suffix != ".hash"
    }


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def address(texts):
    """Serve the text; return the address."""
    handler = partial(_Quiet, directory=texts / "text")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("how", MOST)
@pytest.mark.parametrize("kind", ["cache of text", "cache of pairs", "trace", "download"])
def test_what_is_written_is_whole_or_made_again(worker, texts, address, kind, how):
    """Also a trace is readable to its last whole step, and no downloaded file is damaged."""
    whole, out, sources = texts / "whole", texts / "out", files(texts / "text")
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sources.items()}

    def task(folder):
        if kind == "trace":
            return "record", folder
        if kind == "download":
            return "fetch", address, hashes, folder
        text = kind.removeprefix("cache of ")
        return "encode", text, texts / text, folder

    count = len(worker.changes(whole, *task(whole)))
    assert count > 10
    for _ in stopped_at_each_change(worker, how, count, out, task):
        if kind == "trace" and (out / "trace.json").exists():
            steps = list(Trace(out).steps())
            assert [step for step, _ in steps] == list(range(len(steps)))
            for step, tensors in steps:
                assert np.array_equal(tensors["a"], np.arange(9.0) * step)
        if kind == "download":
            assert files(out).items() <= sources.items()
        finished(worker, *task(out))
        assert files(out) == files(whole)


@pytest.fixture(scope="module")
def servers(library, tmp_path_factory):
    """Start both frameworks with tests/crash.c preloaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        started = {
            name: ForkServer(name, tmp_path_factory.mktemp(name[0])) for name in FRAMEWORKS
        }
    yield started
    for each in started.values():
        each.stop()


def trained(server, out, more=(), **given) -> tuple[int, str]:
    """Run `train.py` for four steps; return its status and what it said."""
    words = [str(ROOT / FOLDERS[server.framework] / "train.py"), *more, "--threads=1"]
    status, _, said = server.start({"argv": words, "environment": given}).wait()
    return status, said


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trainer_goes_on_to_the_same_bits(servers, framework, text, cache, place):
    server, whole, out = servers[framework], place / "whole", place / "out"
    given = flags(data=text, cache=cache, steps=4, checkpoint_every=2, optimizer="adam")
    log = place / "log"
    counting = environment(whole, 0, "exit", log)
    status, said = trained(server, whole, [*given, f"--out={whole}"], **counting)
    assert status == 0, said
    count = len(log.read_text().splitlines())
    for how in HOWS:
        step = 1 if ALL else max(1, count // SAMPLE[how])
        for number in range((step + 1) // 2, count + 1, step):
            shutil.rmtree(out, ignore_errors=True)
            words = [*given, f"--out={out}"]
            check_end(how, *trained(server, out, words, **environment(out, number, how)))
            began = (out / "run.json").exists()
            resume = ["--resume"] if whole_checkpoint(out) or began else []
            status, said = trained(server, out, [*words, *resume])
            assert status == 0, said
            check_finished(out, whole)
