"""Every reader of a file as a function of the file's content, for fuzzing.

`tests/test_fuzz.py` gives each of them some hundreds of mutated files; `make fuzz` a million,
led by what part of the code each one reaches. A reader may raise `UsageError`, of one line that
can be shown, and nothing else.
"""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from oracle_side import recorded_steps, small_spec, write_trace
from safetensors import safe_open
from safetensors.numpy import save

from data.cache import corruption, make_whole
from data.pair_file import read_pairs
from data.text_file import read_lines
from data.vocabulary import TEXT_SPECIAL, Vocabulary
from parity.base.errors import UsageError
from parity.trace.reader import Trace, read_step
from parity.twins.bench.history import newest_alike
from parity.twins.cli.config import ConfigOption, read_config
from parity.twins.commands import run_command
from parity.twins.compare.answers import read_answers
from parity.twins.processes.connection import FAILED, HELLO, TENSORS, checked, unpacked
from parity.twins.processes.hosts import read_hosts
from parity.twins.spec.asynchronous_schedule import read_schedule
from parity.twins.spec.initial import initial_snapshot
from parity.twins.trace.side import TrainedSide
from parity.twins.training import checkpoint as checkpoints
from parity.twins.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from parity.twins.training.loss_table import read_losses

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
    """A reader, and the folder in which files are given to it.

    Attributes:
      reader: the reader.
      folder: the folder.
      whole: the content of a file that is as it should be.
    """

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
    side = TrainedSide("paddle", "parallel-executor", 2, "fast")
    header = {
        **side.to_json(),
        **{"spec": SPEC.to_json(), "corpus": "a" * 64, "batches_per_epoch": 4, "versions": {}},
    }
    write_trace(folder / "trace", header, recorded_steps(SPEC, 2))


def _write_checkpoint(folder: Path) -> None:
    snapshot = {
        name: np.asarray(array, SPEC.training.dtype)
        for name, array in initial_snapshot(SPEC).items()
    }
    shape = SPEC.training.batch_size, SPEC.model.num_layers, SPEC.model.hidden_size
    state = {"h": np.ones(shape), "c": np.ones(shape)}
    save_checkpoint(folder, Checkpoint(SPEC, 3, snapshot, state, "a" * 64, "paddle"))


def _metadata(path: Path) -> bytes:
    """Return a checkpoint's metadata as one JSON object, whose values are JSON themselves."""
    with safe_open(path, framework="numpy") as file:
        return json.dumps(file.metadata(), indent=1).encode()


def _with_metadata(whole: bytes, content: bytes) -> bytes:
    """Return a checkpoint of other metadata, and with the hash that belongs to it."""
    tensors = _tensors_of(whole)
    try:
        given = json.loads(content)
        items = given.items() if isinstance(given, dict) else ()
    except (ValueError, RecursionError):
        items = ()
    metadata = {name: each for name, each in items if isinstance(each, str)}
    metadata.pop("sha256", None)
    metadata["format"] = checkpoints.FORMAT
    try:
        metadata["sha256"] = checkpoints._hash(tensors, metadata)
        return save(tensors, metadata)
    except UnicodeEncodeError:  # half of a character, which no file of safetensors can hold
        return whole


def _tensors_of(whole: bytes) -> dict[str, np.ndarray]:
    from safetensors.numpy import load

    return load(whole)


def _write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def _write_answers(folder: Path) -> None:
    _write("evaluation.json", json.dumps({"bleu": {"score": 12.5}, "exact_answers": 0.5}))(
        folder
    )
    answer = {"question": "a b", "answer": "c", "reference": "c", "scores": [-1.5]}
    _write("answers.jsonl", json.dumps(answer) + "\n")(folder)


def _read_trace(folder: Path) -> None:
    trace = Trace(folder / "trace")
    for step in trace.numbers():
        trace.read(step)


def _write_cache(folder: Path) -> None:
    content = np.arange(9, dtype="<i4").tobytes()
    make_whole(folder / "cached", lambda made: (made / "train.tokens").write_bytes(content))


def _write_tensors(folder: Path) -> None:
    np.savez(folder / "tensors.npz", **{"/a": np.arange(3.0), "/word": np.array("end")})


def _receive(kind: bytes, path: Path) -> None:
    """Take the content of a file for that of a message of another process."""
    content = path.read_bytes()
    try:
        unpacked(content) if kind == TENSORS else checked(kind, content)
    except ValueError as error:
        raise UsageError(str(error)) from None


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
_SCHEDULE = "".join(
    json.dumps({"update": n, "worker": n % 2, "batch": n // 2, "read": n}) + "\n"
    for n in range(6)
)
_NO_PROGRESS = SimpleNamespace(add=lambda count: None)

READERS = {
    reader.name: reader
    for reader in (
        Reader("trace-header", "trace/trace.json", _write_trace, _read_trace),
        Reader("trace-index", "trace/steps.jsonl", _write_trace, _read_trace),
        Reader(
            "trace-step",
            "trace/step-000001.safetensors",
            _write_trace,
            lambda folder: read_step(folder / "trace/step-000001.safetensors"),
        ),
        Reader(
            "checkpoint",
            "step-00000003.safetensors",
            _write_checkpoint,
            lambda folder: load_checkpoint(folder / "step-00000003.safetensors"),
        ),
        Reader(
            "checkpoint-metadata",
            "step-00000003.safetensors",
            _write_checkpoint,
            lambda folder: load_checkpoint(folder / "step-00000003.safetensors"),
            unwrap=_metadata,
            wrap=_with_metadata,
        ),
        Reader(
            "vocabulary",
            "vocabulary.txt",
            lambda folder: Vocabulary([*TEXT_SPECIAL, "the", "cat", "猫"]).save(
                folder / "vocabulary.txt"
            ),
            lambda folder: Vocabulary.load(folder / "vocabulary.txt"),
        ),
        Reader(
            "pairs",
            "train.tsv",
            _write("train.tsv", "how are you\tfine\n你好\t好\r\n\u3000\tx\n"),
            lambda folder: list(read_pairs(folder / "train.tsv", [], _NO_PROGRESS)),
        ),
        Reader(
            "text",
            "train.txt",
            _write("train.txt", "the cat sat\n\n猫 在 这里\r\n"),
            lambda folder: list(read_lines(folder / "train.txt", [])),
        ),
        Reader(
            "config",
            "config.yaml",
            _write("config.yaml", _CONFIG),
            lambda folder: list(read_config(folder / "config.yaml", _OPTIONS)),
        ),
        Reader(
            "cache-hashes",
            "cached/hashes",
            _write_cache,
            lambda folder: corruption(folder / "cached"),
        ),
        Reader(
            "hosts",
            "hosts.toml",
            _write("hosts.toml", _HOSTS),
            lambda folder: read_hosts(folder / "hosts.toml"),
        ),
        Reader(
            "message-tensors",
            "tensors.npz",
            _write_tensors,
            lambda folder: _receive(TENSORS, folder / "tensors.npz"),
        ),
        Reader(
            "message-greeting",
            "greeting.json",
            _write("greeting.json", json.dumps(_GREETING)),
            lambda folder: _receive(HELLO, folder / "greeting.json"),
        ),
        Reader(
            "message-failure",
            "failure.json",
            _write("failure.json", json.dumps({"message": "m", "status": 3, "own": True})),
            lambda folder: _receive(FAILED, folder / "failure.json"),
        ),
        Reader(
            "schedule",
            "schedule.jsonl",
            _write("schedule.jsonl", _SCHEDULE),
            lambda folder: read_schedule(folder / "schedule.jsonl", 2),
        ),
        Reader(
            "losses",
            "losses.csv",
            _write("losses.csv", "step,loss,tokens\n0,4.5,70\n1,4.25,70\n"),
            lambda folder: read_losses(folder / "losses.csv"),
        ),
        Reader("answers", "answers.jsonl", _write_answers, read_answers),
        Reader("evaluation", "evaluation.json", _write_answers, read_answers),
        Reader(
            "history",
            "history.jsonl",
            _write("history.jsonl", json.dumps(_HISTORY) + "\n"),
            lambda folder: newest_alike(
                folder / "history.jsonl", _HISTORY | {"commit": "another"}
            ),
        ),
    )
}
