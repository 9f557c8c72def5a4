"""Real trainings on small texts; each is run once and shared by the tests.

Each framework is imported once per session, by a process that forks one for every training: see
parity/twins/launch/fork_server.py. Tests of starting and stopping start `train.py` themselves.

With pytest-xdist every worker is a session; they share the texts, and what was trained on them.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple
from pathlib import Path

import browser
import numpy as np
import psutil
import pytest
import two_hosts

from parity.base.machine import usable_cores
from parity.trace.reader import Trace
from parity.twins.launch.edited_source import Edit
from parity.twins.launch.fork_server import ForkServer
from parity.twins.launch.processes import ROOT
from parity.twins.spec.frameworks import FRAMEWORKS as REGISTRIES
from parity.twins.training.checkpoint import load_checkpoint

FOLDERS = {name: each.folder for name, each in REGISTRIES.items()}
FRAMEWORKS = tuple(FOLDERS)
# In each process JAX compiles anew whatever it does not find in this folder.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "out" / "cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# framework -> its strategy whose processes sum their gradients
COLLECTIVE = {name: REGISTRIES[name].collective.name for name in FRAMEWORKS}


def chosen(condition, quick=lambda entry: True) -> list:
    """Return the strategies of both registries that satisfy a condition, as parameters.

    What is not quick is thorough.
    """
    thorough = [pytest.mark.thorough]
    needs = [pytest.mark.horovod, *thorough]
    return [
        pytest.param(
            framework,
            entry,
            id=f"{framework}-{entry.name}",
            marks=needs if entry.environment else [] if quick(entry) else thorough,
        )
        for framework in FRAMEWORKS
        for entry in REGISTRIES[framework].strategies
        if condition(entry)
    ]


# 7 rows divide by none of 2, 3 and 4. Of 7 * 20 + 3 pairs of tokens three rows have one more
# than four whole batches of 5: in the fifth, four rows have length zero.
TINY = {
    "embedding_size": 5,
    "hidden_size": 6,
    "batch_size": 7,
    "time": 5,
    "keep": 0.7,
    "clip_norm": 0.1,
    "learning_rate": 0.05,
    "epochs": 3,
    "decay": 1.0,
    "decay_after": 1,
    "vocabulary_size": 40,
    "replicas": 2,  # or there were as many as cores
}
# what turns TINY into a seq2seq network; None takes a flag back
TINY_SEQ2SEQ = {
    "network": "seq2seq",
    "time": None,
    "vocabulary_size": None,
    "source_vocabulary_size": 40,
    "target_vocabulary_size": 40,
    "source_segmenter": "spaces",
    "target_segmenter": "spaces",
    "initial_scale": 0.3,
    "decode": 2,
}
STREAM_BATCHES = 5  # of an epoch of the text below
STEPS = 7  # over the end of an epoch
# how a line begins that TensorFlow, Paddle's engine or Horovod logs
LOGGED = re.compile(
    r"^(rank \d: )?(\d{4}-\d\d-\d\d |[IWEF]\d{4} |INFO|WARNING|ERROR|\[)", re.MULTILINE
)

# marker -> (whether what its tests need is there, the variable that requires it, and the line
# that tells how to get it)
OPTIONAL = {
    "browser": (lambda: browser.program() is not None, browser.REQUIRED, browser.HOW_TO_GET),
    "torch": (
        lambda: importlib.util.find_spec("torch") is not None,
        "PARITY_REQUIRE_TORCH",
        "no PyTorch: install it as docs/witnesses.md says and these witnesses run too",
    ),
    "jax": (
        lambda: all(importlib.util.find_spec(name) for name in ("flax", "jax", "optax")),
        "PARITY_REQUIRE_JAX",
        "no JAX: `make jax` installs it and they run too",
    ),
    "gallery": (
        lambda: all(importlib.util.find_spec(name) for name in ("torchvision", "transformers")),
        "PARITY_REQUIRE_GALLERY",
        "no torchvision and transformers: `make gallery` installs them and they run too",
    ),
    "hosts": (two_hosts.possible, two_hosts.REQUIRED, two_hosts.HOW_TO_GET),
    "compiler": (
        lambda: shutil.which("cc") is not None,
        "PARITY_REQUIRE_COMPILER",
        "no C compiler, by which a process is stopped at each of its writes",
    ),
    "horovod": (
        (ROOT / ".venv-horovod" / "ready").exists,
        "PARITY_REQUIRE_HOROVOD",
        "no environment with Horovod: `make horovod-test` makes it and runs them",
    ),
    "gpu": (
        (ROOT / ".venv-gpu" / "ready").exists,
        "PARITY_REQUIRE_GPU_PACKAGES",
        "no environment for GPUs: `make gpu-test` makes it and runs them",
    ),
}
_LEFT_OUT = pytest.StashKey[dict[str, int]]()


_MOST_WORKERS = 4  # each holds both frameworks, and may hold a browser: about 2 GB


def pytest_configure(config):
    """Name the markers of tests with needs, and let Ctrl-C reach the processes of tests."""
    config.addinivalue_line("markers", "thorough: takes long; `make test-all` runs it")
    for marker, (*_, how) in OPTIONAL.items():
        config.addinivalue_line("markers", f"{marker}: left out where there is {how}")
    config.stash[_LEFT_OUT] = {}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # a shell has started pytest in the background; processes would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has


@pytest.fixture(autouse=True)
def engines_stay_quiet_after_jax(request, monkeypatch):
    """Undo what importing JAX sets: TensorFlow would log in the processes of later tests."""
    if request.node.get_closest_marker("jax"):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Return how many workers `-n auto` stands for: one per core that may be used."""
    return min(usable_cores(), _MOST_WORKERS)


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that need what is not there, unless it is required."""
    for marker, (is_there, required, _) in OPTIONAL.items():
        left_out = [item for item in items if item.get_closest_marker(marker)]
        if left_out and not os.environ.get(required) and not is_there():
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
            config.stash[_LEFT_OUT][marker] = len(left_out)


def pytest_sessionfinish(session):
    """Let a worker of pytest-xdist tell what it left out: the controller collects nothing."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Take from a worker of pytest-xdist what it has left out; all leave out the same."""
    node.config.stash[_LEFT_OUT] |= getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter, config):
    """Say in one line for each need what was left out, and how to get it."""
    for marker, count in config.stash[_LEFT_OUT].items():
        terminalreporter.write_line(f"{count} tests left out, {OPTIONAL[marker][2]}")


def wait_for(condition, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last, f"waited {seconds} s in vain"
        time.sleep(0.01)


def wait_for_checkpoint(out: Path) -> None:
    """Wait until a training has written a checkpoint in its folder."""
    wait_for(lambda: any((out / "checkpoints").glob("step-*")), seconds=240)


def children(process: int) -> list[int]:
    """Return the processes that a process has started, in their order."""
    with suppress(psutil.NoSuchProcess):
        return sorted(each.pid for each in psutil.Process(process).children())
    return []


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder, which is named as /proc names it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (path / "cwd").readlink() == folder:
                found.append(int(path.name))
    return sorted(found)


def flags(**values) -> list[str]:
    """Return the flags of the tiny spec, with values added or replaced; None leaves one out."""
    words = []
    for name, value in (TINY | values).items():
        name = "--" + name.replace("_", "-")
        if value is True:
            words.append(name)
        elif value is False:
            words.append(f"--no-{name.removeprefix('--')}")
        elif value is not None:
            words.append(f"{name}={value}")
    return words


def write_text(
    folder: Path, train_tokens: int = 7 * 20 + 4, words: int = 30, other_tokens: int = 60
) -> Path:
    """Write sentences of 1 to 9 words, as many tokens with `<eos>` as are asked for."""
    folder.mkdir(parents=True)
    draw = random.Random(7)
    for split, tokens in (
        ("train", train_tokens),
        ("valid", other_tokens),
        ("test", other_tokens),
    ):
        lines = []
        while tokens > 0:
            length = min(draw.randint(2, 10), tokens)
            tokens -= length
            # word 0 more often, so that the loss has something to fall to
            lines.append(" ".join(f"w{draw.randrange(words) // 2}" for _ in range(length - 1)))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


class Once:
    """Folders that are filled once, whichever worker of pytest-xdist comes first.

    Args:
      folder: an existing folder that all workers share.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def fill(self, names: Iterable[str], fill) -> list[Path]:
        """Return the folders of some names; `fill` gets those that are not filled yet."""
        folders = [self._folder / name for name in names]
        with ExitStack() as held:
            for folder in sorted(folders):
                lock = held.enter_context(folder.with_suffix(".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            missing = [each for each in folders if not each.with_suffix(".done").exists()]
            for folder in missing:
                shutil.rmtree(folder, ignore_errors=True)  # one that failed
                folder.mkdir()
            if missing:
                fill(missing)
            for folder in missing:
                folder.with_suffix(".done").touch()
        return folders


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Once:
    """Return what fills folders once for all workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    folder.mkdir(exist_ok=True)
    return Once(folder)


@pytest.fixture(scope="session")
def text(once) -> Path:
    """Return a folder of text; see `TINY` for its sizes."""
    (folder,) = once.fill(["text"], lambda folders: write_text(folders[0] / "data"))
    return folder / "data"


def write_pairs(folder: Path) -> None:
    """Write pairs of very unequal lengths."""
    draw = random.Random(3)
    for split, count in (("train", 7 * 3), ("valid", 8), ("test", 8)):
        lines = []
        for _ in range(count):
            sides = [
                " ".join(f"w{draw.randrange(15)}" for _ in range(draw.choice((1, 2, 4, 7, 9))))
                for _ in range(2)
            ]
            lines.append("\t".join(sides))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def pairs(once) -> Path:
    """Return a folder of tokenised pairs of very unequal lengths."""
    return once.fill(["pairs"], lambda folders: write_pairs(folders[0]))[0]


@pytest.fixture(scope="session")
def cache(once) -> Path:
    """Return a folder for encoded corpora."""
    return once.fill(["cache"], lambda folders: None)[0]


@pytest.fixture(scope="session")
def frameworks(tmp_path_factory):
    """Start both frameworks, at the same time."""
    started = {name: ForkServer(name, tmp_path_factory.mktemp(name[0])) for name in FRAMEWORKS}
    yield started
    for framework in started.values():
        framework.stop()


@pytest.fixture(params=COLLECTIVE)
def name(request) -> str:
    """Return the name of each framework in turn."""
    return request.param


@pytest.fixture(params=FRAMEWORKS)
def framework(request, frameworks) -> ForkServer:
    """Return each framework in turn."""
    return frameworks[request.param]


# of what both frameworks do by the same code, one is quick
ONE_FRAMEWORK = pytest.mark.parametrize(
    "framework",
    ["paddle", pytest.param("tensorflow", marks=pytest.mark.thorough)],
    indirect=True,
)


class Trainings:
    """Trainings by the fork servers; what was run once is kept, for all workers.

    Args:
      server: function from a framework and the name of a strategy to what runs it.
      once: what they are kept in.
      given: flags of all trainings, unless others are given.
    """

    def __init__(self, server: Callable[[str, str | None], ForkServer], once: Once, given):
        self.server, self._once, self._given = server, once, given

    def run(
        self,
        frameworks: Iterable[str],
        kind: str,
        edits: Sequence[Edit] = (),
        again=0,
        **values,
    ) -> list[Path]:
        """Train in some frameworks at once.

        Args:
          kind: "trace" to record the training, "out" to save its checkpoints and losses.
          edits: lines of the project's source to replace.
          again: another number trains another time.
          **values: flags in place of those in `TINY`.

        Returns:
          the folder of each framework's training.
        """
        words = flags(**self._given | values)
        what = json.dumps([sorted(words), kind, again, [astuple(each) for each in edits]])
        key = hashlib.sha256(what.encode()).hexdigest()[:20]
        strategy = values.get("strategy")

        def train(folders):
            jobs = [
                (name, self.server(name, strategy).train(*words, where, edits=edits))
                for folder in folders
                for name, where in [(folder.name.split("-")[0], f"--{kind}={folder}")]
            ]
            ended = [(name, job.wait()) for name, job in jobs]
            for name, (status, _, errors) in ended:
                assert status == 0, f"{name}: {errors}"
                assert not LOGGED.search(errors), errors

        return self._once.fill([f"{name}-{key}" for name in frameworks], train)


@pytest.fixture(scope="session")
def trainings(frameworks, once, text, cache, tmp_path_factory):
    """Return trainings of the tiny spec, in float64 and by default for `STEPS` steps."""
    others: dict[str, ForkServer] = {}  # by the environments that they run in

    def server(framework, strategy):
        entry = REGISTRIES[framework].strategies.entry(strategy)
        if not entry.environment:
            return frameworks[framework]
        if entry.environment not in others:
            folder = tmp_path_factory.mktemp("other")
            others[entry.environment] = ForkServer(framework, folder, strategy=strategy)
        return others[entry.environment]

    given = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache}
    yield Trainings(server, once, given)
    for each in others.values():
        each.stop()


@pytest.fixture(scope="session")
def run_both(trainings):
    """Return a function that trains both sides at once and returns {framework: Trace}.

    Its arguments are flags in place of those in `TINY`.
    """

    def run(**values) -> dict[str, Trace]:
        folders = trainings.run(FRAMEWORKS, "trace", **values)
        return {name: Trace(each) for name, each in zip(FRAMEWORKS, folders, strict=True)}

    return run


@pytest.fixture(scope="session")
def window(tmp_path_factory):
    """Start a browser."""
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def start(command, **options) -> subprocess.Popen:
    """Start a command from the root of the project, its output as text."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        **{"cwd": ROOT, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        | options,
    )


def ended(job, status: int = 0) -> str:
    """Wait for a training, see that it ends with a status, and return what it said."""
    found, _, errors = job.wait()
    assert found == status, errors
    return errors


def run_python(*words, **options) -> subprocess.CompletedProcess:
    """Run Python from the root of the project until it ends, its output as text."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        **{"cwd": ROOT, "capture_output": True, "text": True} | options,
    )


def one_line(caught, status: int = 2) -> str:
    """See that an error that was raised is told in one line; return the line."""
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_status == status
    return message


def assert_one_line(status: int, errors: str, expected: int = 2) -> str:
    """See that a command told what is wrong in one line; return the line."""
    assert status == expected, errors
    assert "Traceback" not in errors
    lines = errors.splitlines()
    complaints = [line for line in lines if line.startswith("error: ")]
    assert len(complaints) == 1
    assert lines[-1] == complaints[0], errors
    return complaints[0]


def assert_same_end(ours: Path, theirs: Path) -> None:
    """See that two runs have ended with the same bits."""
    name = (theirs / "checkpoints" / "latest").read_text().strip()
    found = [load_checkpoint(each / "checkpoints" / name) for each in (ours, theirs)]
    for kind in ("snapshot", "state"):
        mine, other = (getattr(each, kind) or {} for each in found)
        assert mine.keys() == other.keys()
        for tensor, array in other.items():
            np.testing.assert_array_equal(mine[tensor], array, tensor)
    losses = [(each / "losses.csv").read_bytes() for each in (ours, theirs)]
    assert losses[0] == losses[1]


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
