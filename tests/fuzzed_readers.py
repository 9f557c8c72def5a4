"""Every reader of a file as a function of the file's content, for fuzzing.

Messages of other processes and variables of launchers are such content, too.
`tests/test_fuzz.py` gives each of them some hundreds of mutated files; `make fuzz` a million,
led by what part of the code each one reaches. A reader may raise `UsageError`, of one line that
can be shown, and nothing else.
"""

import hashlib
import io
import json
import queue
import socket
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from oracle_side import header, recorded_steps, small_spec, write_trace
from safetensors import safe_open
from safetensors.numpy import load, save

from data.cache import cached_folder, corruption, make_whole
from data.pair_file import read_pairs
from data.segmenters import read_user_dictionary
from data.text_file import read_lines
from data.vocabulary import Vocabulary
from paddle_impl.mkl_cpu_type import keep_choice, read_choice
from parity.align.mapping import read as read_mapping
from parity.align.traps import traps
from parity.base.errors import RankLost, UsageError
from parity.base.files import HEADER as HEADER_OF_RUN
from parity.base.files import written_by_run
from parity.base.text import with_checksum
from parity.compare.measured_bounds import FORMAT as FORMAT_OF_BOUNDS
from parity.compare.measured_bounds import read_bounds
from parity.pair.recorder import Recorder
from parity.trace.reader import Trace, read_step
from parity.twins.bench.history import newest_alike
from parity.twins.cli.config import ConfigOption, read_config, values_of_run
from parity.twins.cli.options import ConvergeOptions, SweepOptions
from parity.twins.commands import run_command
from parity.twins.compare.answers import read_answers
from parity.twins.converge.trainings import Run, Trainings
from parity.twins.processes import remote
from parity.twins.processes.connection import (
    FAILED,
    HEADER,
    HELLO,
    TENSORS,
    Connection,
    checked,
    unpacked,
)
from parity.twins.processes.handshake import SECRET_FILE, _Guest, _proof, run_secret
from parity.twins.processes.hosts import read_hosts
from parity.twins.processes.launcher_variables import MEETING, Members, membership, variables
from parity.twins.spec.asynchronous_schedule import read_schedule
from parity.twins.spec.initial import initial_snapshot
from parity.twins.sweep.random_sweep import _earlier_results
from parity.twins.trace.side import TrainedSide
from parity.twins.training import checkpoint as checkpoints
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    load_checkpoint,
    newest_first,
    read_vocabularies,
    save_checkpoint,
)
from parity.twins.training.loss_table import read_losses, read_validations
from parity.twins.training.run_folder import _name_of_run

SPEC = small_spec()


@dataclass(frozen=True, repr=False)
class Reader:
    """A reader of a file.

    Attributes:
      name: what it reads.
      file: the path of the file within its folder.
      prepare: writes a whole file, and all that belongs to it, to an empty folder.
      read: reads the file, or what it belongs to.
      unwrap: returns what of the whole file is mutated; None for all of it.
      wrap: makes a file of that again: of what `prepare` has written, and of the mutation.
    """

    def __repr__(self) -> str:
        return self.name

    name: str
    file: str
    prepare: Callable[[Path], object]
    read: Callable[[Path], object]
    unwrap: Callable[[Path], bytes] = Path.read_bytes
    wrap: Callable[[bytes, bytes], bytes] | None = None

    def open(self, folder: Path) -> "OpenReader":
        """Return it with a whole file in a folder."""
        self.prepare(folder)
        return OpenReader(self, folder, (folder / self.file).read_bytes())


@dataclass(frozen=True)
class OpenReader:
    """A reader, the folder in which files are given to it, and a file as it should be."""

    reader: Reader
    folder: Path
    whole: bytes = field(repr=False)

    @property
    def seed(self) -> bytes:
        """Return what may be mutated of a whole file."""
        (self.folder / self.reader.file).write_bytes(self.whole)
        return self.reader.unwrap(self.folder / self.reader.file)

    def accepts(self, content: bytes) -> bool:
        """Return whether a mutated file is read; False if it is refused in one line.

        Raises:
          Exception: whatever else comes out of the reader.
        """
        wrap = self.reader.wrap
        (self.folder / self.reader.file).write_bytes(
            wrap(self.whole, content) if wrap else content
        )
        try:
            self.reader.read(self.folder)
        except UsageError as error:
            message = str(error)
            assert message.strip(), "refused without a reason"
            shown = "".join(c for c in message if unicodedata.category(c) not in ("Cc", "Cs"))
            assert [shown] == message.splitlines(), f"cannot be shown: {message!r}"
            return False
        return True


def _write_trace(folder: Path) -> None:
    write_trace(folder / "trace", header(SPEC, "paddle"), recorded_steps(SPEC, 2))


def _write_watched(folder: Path) -> None:
    """Write two traces as watches write them, of a network of one module of each kind."""
    shapes = {
        "conv": {"weight": (2, 1, 3), "bias": (2,)},
        "norm": {"weight": (2,), "bias": (2,)},
        "drop": {},
        "pool": {},
        "fc": {"weight": (3, 2), "bias": (3,)},
        "gru": {"weight_ih_l0": (6, 3), "weight_hh_l0": (6, 2)},
    }
    sizes = {"kernel_size": [3], "stride": [1], "padding": [1], "dilation": [1], "groups": 1}
    kinds = {
        "conv": ("Conv1d", sizes),
        "norm": ("BatchNorm1d", {"eps": 1e-5, "momentum": 0.1}),
        "drop": ("Dropout", {"p": 0.5}),
        "pool": ("AvgPool1d", {"padding": [0], "count_include_pad": True}),
        "fc": ("Linear", {}),
        "gru": ("GRU", {"hidden_size": 2, "num_layers": 1}),
    }
    modules = [
        {
            **{"name": name, "kind": kind, "settings": given},
            "parameters": {role: f"{name}.{role}" for role in shapes[name]},
        }
        for name, (kind, given) in kinds.items()
    ]
    optimizer = {"kind": "AdamW", "settings": {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8}}
    tensors = {
        f"initial/{name}.{role}": np.ones(shape)
        for name, roles in shapes.items()
        for role, shape in roles.items()
    }
    tensors |= {f"forward/{name}": np.ones((4, 3)) for name in kinds}
    for side, version in (("a", "torch"), ("b", "paddle")):
        facts = {"modules": modules, "optimizer": optimizer}
        versions = {version: "1"}
        given = {"framework": side, "dtype": "float64", "versions": versions, "facts": facts}
        with Recorder(folder / side, **given) as recorder:
            recorder.step(0, {"batch/x": np.ones((4, 3)), **tensors})


def _align(folder: Path) -> None:
    traps([Trace(folder / side) for side in "ab"])


def _write_checkpoint(folder: Path) -> None:
    snapshot = {
        name: np.asarray(array, SPEC.training.dtype)
        for name, array in initial_snapshot(SPEC).items()
    }
    shape = SPEC.training.batch_size, SPEC.model.num_layers, SPEC.model.hidden_size
    state = {"h": np.ones(shape), "c": np.ones(shape)}
    save_checkpoint(folder, Checkpoint(SPEC, 3, snapshot, state, "a" * 64, "paddle"))


_STEP, _CHECKPOINT = "trace/step-000001.safetensors", "step-00000003.safetensors"


def _read_checkpoint(folder: Path) -> None:
    load_checkpoint(folder / _CHECKPOINT)


def _metadata(path: Path) -> bytes:
    """Return a checkpoint's metadata as one JSON object, whose values are JSON themselves."""
    with safe_open(path, framework="numpy") as file:
        return json.dumps(file.metadata(), indent=1).encode()


def _with_metadata(whole: bytes, content: bytes) -> bytes:
    """Return a checkpoint of other metadata, and with the hash that belongs to it."""
    tensors = load(whole)
    try:
        given = json.loads(content)
        items = given.items() if isinstance(given, dict) else ()
    except (ValueError, RecursionError):
        items = ()
    metadata = {name: each for name, each in items if isinstance(each, str)}
    metadata.pop("sha256", None)
    metadata["format"] = checkpoints.FORMAT
    try:
        metadata["sha256"] = checkpoints.contents_hash(tensors, metadata)
        return save(tensors, metadata)
    except UnicodeEncodeError:  # half of a character, which no file of safetensors can hold
        return whole


def _of_folder(name: str, file: str, content: Any, read: Callable[[Path], object]) -> Reader:
    """Return a reader of a folder with one file: of text, of bytes, or of JSON."""
    if not isinstance(content, str | bytes):
        content = json.dumps(content) + "\n"
    content = content.encode() if isinstance(content, str) else content
    return Reader(name, file, lambda folder: (folder / file).write_bytes(content), read)


def _of_file(name: str, file: str, content: Any, read: Callable[[Path], object]) -> Reader:
    """Return a reader of one file, whose `read` takes its path."""
    return _of_folder(name, file, content, lambda folder: read(folder / file))


def _write_answers(folder: Path) -> None:
    evaluation = {"bleu": {"score": 12.5}, "exact_answers": 0.5}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    answer = {"question": "a b", "answer": "c", "reference": "c", "scores": [-1.5]}
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n")


def _read_trace(folder: Path) -> None:
    trace = Trace(folder / "trace")
    for step in trace.numbers():
        trace.read(step)
        trace.number(step, "loss/global")


def _write_cache(folder: Path) -> None:
    content = np.arange(9, dtype="<i4").tobytes()
    make_whole(folder / "cached", lambda made: (made / "train.tokens").write_bytes(content))


def _write_tensors(folder: Path) -> None:
    np.savez(folder / "tensors.npz", **{"/a": np.arange(3.0), "/word": np.array("end")})


def _message(kind: bytes, values: object) -> bytes:
    content = json.dumps(values).encode()
    return HEADER.pack(kind, len(content)) + content


def _write_facts(folder: Path) -> None:
    (folder / "facts").write_text('{"num_tokens": 9}')


def _receive(kind: bytes, path: Path) -> None:
    """Take the content of a file for that of a message of another process."""
    content = path.read_bytes()
    try:
        unpacked(content) if kind == TENSORS else checked(kind, content)
    except ValueError as error:
        raise UsageError(str(error)) from None


_SENT = 50_000  # bytes that a socket takes before anybody reads them
_NUMBERS, _SECRET = (b"0" * 32, b"1" * 32), b"the secret of the run"


def _come_to_rank_0(path: Path) -> None:
    """Let rank 0 hear the content of a file from whom it does not know yet."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = _Guest(ours, "a stranger")
        guest._number = _NUMBERS[0]
        theirs.sendall(path.read_bytes()[:_SENT])
        theirs.shutdown(socket.SHUT_WR)
        try:
            while guest.hear(_SECRET) is None:
                pass
        except (OSError, ValueError) as error:
            raise UsageError(str(error)) from None


def _receive_bytes(path: Path) -> None:
    """Let a process take the content of a file for messages of another one."""
    channel: Any = SimpleNamespace(
        setsockopt=lambda *_: None,
        settimeout=lambda _: None,
        recv=io.BytesIO(path.read_bytes()).read,
    )
    connection = Connection(channel)
    try:
        while True:
            connection.receive(5.0)
    except ConnectionResetError:  # all is received
        return
    except ValueError as error:
        raise UsageError(str(error)) from None


def _follow_agent(path: Path) -> None:
    """Take a file for what the agent of another host writes, before and after the start."""
    with path.open("rb") as stream:
        found = remote.RemoteProcesses.__new__(remote.RemoteProcesses)
        found.host, found.names = SimpleNamespace(name="host 10.0.0.2"), {1: "rank 1"}
        found._process = SimpleNamespace(stdout=stream, wait=lambda: 0)
        found._deadline, found._command = time.monotonic() + 5, ["ssh"]
        found._errors, found._ended = io.BytesIO(), queue.SimpleQueue()
        try:
            found.answer()
        except RankLost as error:
            raise UsageError(str(error)) from None
        found._follow(lambda number, line: None)
        assert all(type(status) is int for status in found.take_ended().values())


def _variables(name: str, framework: str, served: dict[str, tuple[str, ...]]) -> Reader:
    members = Members(("10.0.0.1:6170", "10.0.0.2:6170"), served)
    given = variables(framework, len(members.jobs) - 1, members, "10.0.0.1:7000")

    def read(path: Path) -> None:
        lines = path.read_text(errors="surrogateescape").split("\n")
        found = dict(line.split("=", 1) for line in lines if "=" in line)
        # without it, Horovod's rendezvous server is asked
        membership(framework, {MEETING: "a:1"} | found, tuple(members.served))

    content = "".join(f"{name}={value}\n" for name, value in given.items())
    return _of_file(f"variables-{name}", "variables", content, read)


def _trainings(folder: Path) -> Trainings:
    return Trainings(SPEC, ConvergeOptions(out=folder), "a" * 64, 3, {})


_RUN = Run("paddle", TrainedSide("paddle", "parallel-executor"), 1)


def _write_finished(folder: Path) -> None:
    summary = {"valid_perplexity": [9.5], "test_perplexity": 9.0, "versions": {"numpy": "1"}}
    trained = _trainings(folder)._folder(_RUN)
    trained.mkdir(parents=True)
    (trained / "summary.json").write_text(json.dumps(summary))
    _trainings(folder)._finish(_RUN)


def _write_choice(folder: Path) -> None:
    keep_choice(folder / "mkl" / "choice.json", "5", {"": 1.5})


_WORDS = "<unk>\n<eos>\nthe\n"


def _read_checkpoints_vocabulary(folder: Path) -> None:
    digest = hashlib.sha256(_WORDS.encode()).hexdigest()
    read_vocabularies(SimpleNamespace(vocabularies={"vocabulary.txt": digest}), folder)


_OPTIONS = {each.name: each for each in run_command.params if isinstance(each, ConfigOption)}
_CONFIG = """# of a run
network: language-model
preset: tiny
hidden-size: 6
keep: 0.75
strategy: [paddle=data-parallel, tensorflow=multi-worker]
dtype: [float64]
throughput: false
data: null
"""
_HISTORY = {
    "commit": "0123abc",
    "date": "2026-11-23",
    "processor": "one",
    "cores": 2,
    "network": "language-model",
    "spec": SPEC.to_json(),
    "steps": 5,
    "text": "generated",
    "product_limit": 1e11,
    "cases": {"paddle 2 x 1": {"steps": 5, "speed": {"median": 9.0, "spread": [8.0, 10.0]}}},
}
_HOSTS = """ports = [7000, 7100]

[[host]]
address = "10.0.0.1"
ranks = 2

[[host]]
address = "10.0.0.2"
command = "ssh -o BatchMode=yes user@10.0.0.2"
python = "/parity/.venv/bin/python"
environment = { OMP_NUM_THREADS = "1" }
"""
_GREETING = {"rank": 1, "members": ["rank 0", "rank 1"], "name": "rank 1", "facts": {"a": "b"}}
# what a rank of the run says to rank 0 before it is known as one
_GUEST = _NUMBERS[1] + _proof(_SECRET, b"a rank", *_NUMBERS) + _message(HELLO, _GREETING)
_FAILURE = {"message": "m", "status": 3, "own": True}
_AGENT = """welcome to 10.0.0.2
{"ports": [7000]}
{"number": 1, "line": "a line"}
{"number": 1, "ended": 0}
"""
_SWEPT = {"number": 0, "seed": 1, "strategy": "(none)", "used": {"forward": 0.5}}
_MAP = """format: 1
a: paddle
b: tensorflow
units: []
"""
_SCHEDULE = "".join(
    json.dumps({"update": n, "worker": n % 2, "batch": n // 2, "read": n}) + "\n"
    for n in range(6)
)
_BOUNDS = {
    "format": FORMAT_OF_BOUNDS,
    "side": "paddle",
    "runs": 4,
    "dtype": "float32",
    "kinks": {},
    "noise": [],
    "steps": [0, 1],
    "tensors": {"weight/a": [0.5, None]},
}
_NO_PROGRESS = SimpleNamespace(add=lambda count: None)
_VOCABULARY = "<unk>\n<eos>\nthe\ncat\n猫\n"
_PAIRS = "how are you\tfine\n你好\t好\r\n\u3000\tx\n"
_TEXT = "the cat sat\n\n猫 在 这里\r\n"
_BEST = {"step": 3, "valid_perplexity": 9.5}
_LOSSES = "step,loss,tokens\n0,4.5,70\n1,4.25,70\n"
_VALIDATIONS = "step,perplexity,bleu\n4,45.5,\n8,40.25,1.5\n"

READERS = {
    reader.name: reader
    for reader in (
        Reader("trace-header", "trace/trace.json", _write_trace, _read_trace),
        Reader("watched-header", "a/trace.json", _write_watched, _align),
        Reader("trace-index", "trace/steps.jsonl", _write_trace, _read_trace),
        Reader("trace-step", _STEP, _write_trace, lambda folder: read_step(folder / _STEP)),
        Reader("checkpoint", _CHECKPOINT, _write_checkpoint, _read_checkpoint),
        Reader(
            "checkpoint-metadata",
            _CHECKPOINT,
            _write_checkpoint,
            _read_checkpoint,
            unwrap=_metadata,
            wrap=_with_metadata,
        ),
        _of_file("vocabulary", "vocabulary.txt", _VOCABULARY, Vocabulary.load),
        _of_file(
            "pairs", "train.tsv", _PAIRS, lambda path: list(read_pairs(path, [], _NO_PROGRESS))
        ),
        _of_file("text", "train.txt", _TEXT, lambda path: list(read_lines(path, []))),
        _of_file(
            "config", "config.yaml", _CONFIG, lambda path: list(read_config(path, _OPTIONS))
        ),
        Reader(
            "cache-hashes",
            "cached/hashes",
            _write_cache,
            lambda folder: corruption(folder / "cached"),
        ),
        _of_file("hosts", "hosts.toml", _HOSTS, read_hosts),
        Reader(
            "message-tensors",
            "tensors.npz",
            _write_tensors,
            lambda folder: _receive(TENSORS, folder / "tensors.npz"),
        ),
        _of_file("message-greeting", "json", _GREETING, lambda path: _receive(HELLO, path)),
        _of_file("message-failure", "json", _FAILURE, lambda path: _receive(FAILED, path)),
        _of_file("message-guest", "bytes", _GUEST, _come_to_rank_0),
        _of_file(
            "messages",
            "bytes",
            _message(HELLO, _GREETING) + _message(FAILED, _FAILURE),
            _receive_bytes,
        ),
        _of_file("message-agent", "lines", _AGENT, _follow_agent),
        _variables("paddle", "paddle", {}),
        _variables("paddle-servers", "paddle", {"ps": ("10.0.0.3:6170",)}),
        _variables("tensorflow", "tensorflow", {}),
        _variables("tensorflow-servers", "tensorflow", {"ps": ("10.0.0.3:6170",)}),
        _variables("horovod", "horovod", {}),
        _of_file(
            "secret",
            "secret",
            "0123456789abcdef" * 4,
            lambda path: run_secret({SECRET_FILE: str(path)}),
        ),
        Reader(
            "finished-training",
            "runs/paddle-1/training.json",
            _write_finished,
            lambda folder: (
                _trainings(folder)._finished(_RUN),
                _trainings(folder)._begun(_RUN),
            ),
        ),
        _of_file(
            "sweep",
            "runs.jsonl",
            2 * f"{with_checksum(_SWEPT)}\n",
            lambda path: _earlier_results(path, SweepOptions(start=1)),
        ),
        _of_folder("best-checkpoint", "best.json", _BEST, best_checkpoint),
        _of_folder("newest-checkpoint", "latest", "step-00000003\n", newest_first),
        _of_folder("run-name", "run.json", {"name": "a"}, _name_of_run),
        _of_folder(
            "run-config",
            "config.yaml",
            HEADER_OF_RUN + _CONFIG,
            lambda folder: (written_by_run(folder / "config.yaml"), values_of_run(folder)),
        ),
        Reader(
            "choice",
            "mkl/choice.json",
            _write_choice,
            lambda folder: read_choice(folder / "mkl" / "choice.json"),
        ),
        Reader(
            "cache-facts",
            "cached/facts",
            lambda folder: make_whole(folder / "cached", _write_facts),
            # making the folder anew takes four times as long as seeing that it must be
            lambda folder: (
                corruption(folder / "cached")
                or cached_folder(folder / "cached", "facts", _write_facts, {})
            ),
        ),
        _of_folder(
            "checkpoint-vocabulary", "vocabulary.txt", _WORDS, _read_checkpoints_vocabulary
        ),
        _of_file(
            "user-dictionary",
            "words.txt",
            "猫粮 5 n\n狗粮\n",
            lambda path: read_user_dictionary(path, []),
        ),
        _of_file("mapping", "map.yaml", _MAP, read_mapping),
        _of_file("bounds", "bounds.json", _BOUNDS, read_bounds),
        _of_file("schedule", "schedule.jsonl", _SCHEDULE, lambda path: read_schedule(path, 2)),
        _of_file("losses", "losses.csv", _LOSSES, read_losses),
        _of_file("validations", "validations.csv", _VALIDATIONS, read_validations),
        Reader("answers", "answers.jsonl", _write_answers, read_answers),
        Reader("evaluation", "evaluation.json", _write_answers, read_answers),
        _of_file(
            "history",
            "history.jsonl",
            _HISTORY,
            lambda path: newest_alike(path, _HISTORY | {"commit": "another"}),
        ),
    )
}
