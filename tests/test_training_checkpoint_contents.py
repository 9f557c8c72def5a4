"""A checkpoint whose hash is right but whose content is not is refused in one line."""

import json
import shutil
import struct

import numpy as np
import pytest
from conftest import FRAMEWORKS, assert_one_line, flags
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from parity.base.errors import UsageError
from parity.twins.training import checkpoint as module
from parity.twins.training.checkpoint import load_checkpoint, newest_checkpoint

BIAS = "weight/lstm_0/bias"


def rewritten(path, change) -> None:
    """Change a checkpoint's tensors or metadata, with a hash that fits again."""
    with safe_open(path, framework="numpy") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change(tensors, metadata)
    metadata.pop("sha256")
    save_file(tensors, path, metadata | {"sha256": module.contents_hash(tensors, metadata)})


def retyped(path, kind, size) -> None:
    """Call every tensor one of another type of some bits each, as its header says."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data, start = json.loads(content[8 : 8 + length]), b"", 0
    for name, about in header.items():
        if name != "__metadata__":
            count = int(np.prod(about["shape"])) * size // 8
            about |= {"dtype": kind, "data_offsets": [start, start + count]}
            start, data = start + count, data + bytes(count)
    words = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(words)) + words + data)


def field(name, value):
    """Set a field of the metadata."""
    return lambda tensors, metadata: metadata.update({name: value})


def without(name):
    """Leave out a field of the metadata."""
    return lambda tensors, metadata: metadata.pop(name)


def in_spec(part, name, value):
    """Set a field of the spec, as JSON."""

    def change(tensors, metadata):
        spec = json.loads(metadata["spec"])
        (spec if part is None else spec[part])[name] = "VALUE"
        metadata["spec"] = json.dumps(spec).replace('"VALUE"', value)

    return change


def tensor(name, value):
    """Replace a tensor by a function of it."""
    return lambda tensors, metadata: tensors.update({name: value(tensors[name])})


def all_tensors(value):
    return lambda tensors, metadata: tensors.update({n: value(a) for n, a in tensors.items()})


def renamed(old, new):
    return lambda tensors, metadata: tensors.update({new: tensors.pop(old)})


def no_state(tensors, metadata):
    for name in ("state/h", "state/c"):
        del tensors[name]


def not_a_number(array):
    array[0] = np.nan
    return array


STEPS = "allowed: 0 .. 99,999,999"
# name -> the change, and what the line says of it
CONTENTS = {
    "float64 for float32": (all_tensors(lambda a: a.astype("f8")), " is float64; its spec"),
    "whole numbers": (tensor(BIAS, lambda a: a.astype("i8")), f"'{BIAS}' is of type I64; allo"),
    "a NaN": (tensor(BIAS, not_a_number), f"{BIAS} is not finite"),
    "another shape": (tensor(BIAS, lambda a: a[:-1].copy()), f"{BIAS} is (23,); its spec says"),
    "no state": (no_state, "the recurrent state holds nothing; its spec says ['c', 'h']"),
    "a state of another name": (renamed("state/c", "state/d"), "state holds ['d', 'h']"),
    "fewer rows": (tensor("state/h", lambda a: a[1:].copy()), "state/h is (6, 2, 6); its spec"),
    "a state of no axes": (
        tensor("state/h", lambda a: a[:1, 0, 0].reshape(())),
        "state/h is (); its spec",
    ),
    "a state turned": (tensor("state/h", lambda a: a.swapaxes(0, 1).copy()), "is (2, 7, 6)"),
    "another name": (renamed(BIAS, f"{BIAS}es"), f"missing: ['{BIAS}']; extra: ['{BIAS}es']"),
    "step -5": (field("step", "-5"), f"step is '-5'; {STEPS}"),
    "no digits of ours": (field("step", "٣"), "step is '\\u0663'; "),
    **{
        f"no {name}": (without(name), f"there is no {name} in its metadata")
        for name in ("spec", "step", "corpus", "framework", "vocabularies")
    },
    "a spec that is no JSON": (field("spec", "{'"), 'spec is "{\'"; allowed: JSON'),
    "a network of numbers": (in_spec(None, "network", "[1]"), "allowed: an object with a netw"),
    "an unknown network": (
        in_spec(None, "network", '"x"'),
        "its network is 'x'; allowed: language-model, seq2seq",
    ),
    "no model": (in_spec(None, "model", "null"), "its model is None; allowed: a mapping"),
    "a field too many": (in_spec("model", "more", "1"), "its model has 'more'; allowed: v"),
    "a truth for a size": (
        in_spec("model", "hidden_size", "true"),
        "--hidden-size is True; allowed: a whole number",
    ),
    "another precision": (
        in_spec("training", "dtype", '"float64"'),
        "float32; its spec says fl",
    ),
    "a list of words": (field("vocabularies", "[]"), "vocabularies is []; allowed: an object"),
    "a path for words": (
        field("vocabularies", json.dumps({"../../x": "0" * 64})),
        "vocabularies: '../../x'; allowed: the name of a file",
    ),
    "no hash of words": (
        field("vocabularies", '{"a.txt": 3}'),
        "a.txt is 3; allowed: a sha256",
    ),
    "a framework that clears the screen": (
        field("framework", "\x1b[2J"),
        "framework is '\\x1b[2J'; allowed: a name",
    ),
    "an empty corpus": (field("corpus", ""), "corpus is ''; allowed: a hash"),
}
TYPES = {"BF16": 16, "F8_E4M3": 8, "F16": 16, "BOOL": 8, "C64": 64}


@pytest.fixture(scope="module")
def trained(frameworks, text, cache, tmp_path_factory):
    """Train two steps, with Adam and float32; return the folder of the checkpoints."""
    out = tmp_path_factory.mktemp("trained")
    given = {"data": text, "cache": cache, "out": out, "steps": 2, "checkpoint_every": 1}
    job = frameworks["paddle"].train(*flags(**given, optimizer="adam"))
    assert job.wait()[0] == 0
    return out / "checkpoints"


@pytest.fixture
def copies(trained, tmp_path):
    """Return a folder with copies of both checkpoints."""
    return shutil.copytree(trained, tmp_path / "checkpoints")


@pytest.fixture
def newest(copies):
    return copies / "step-00000002.safetensors"


@pytest.mark.parametrize("case", CONTENTS)
def test_it_is_refused_in_one_line(newest, copies, case):
    change, expected = CONTENTS[case]
    rewritten(newest, change)
    with pytest.raises(UsageError) as caught:
        load_checkpoint(newest)
    message = str(caught.value)
    assert message.startswith(f"{newest}: ")
    assert expected in message
    assert len(message) < len(str(newest)) + 400
    assert message.isprintable()
    notes = []
    assert newest_checkpoint(copies, notes).step == 1
    assert notes == [f"skipped a checkpoint: {message}"]


@pytest.mark.parametrize("kind", TYPES)
def test_tensors_of_other_types_are_refused(newest, kind):
    retyped(newest, kind, TYPES[kind])
    with pytest.raises(UsageError, match=f"is of type {kind}; allowed: F32, F64"):
        load_checkpoint(newest)


def test_a_checkpoint_rewritten_as_it_was_is_accepted(newest):
    rewritten(newest, lambda tensors, metadata: None)
    assert load_checkpoint(newest).step == 2


def test_both_trainers_refuse_it_alike(frameworks, newest, text, cache, tmp_path):
    change, expected = CONTENTS["no state"]
    rewritten(newest, change)
    given = {"data": text, "cache": cache, "resume": newest, "optimizer": "adam", "steps": 3}
    jobs = {
        name: frameworks[name].train(*flags(**given, out=tmp_path / name))
        for name in FRAMEWORKS
    }
    lines = {assert_one_line(*job.wait()[::2]) for job in jobs.values()}
    (line,) = lines
    assert line.startswith(f"error: {newest}: ")
    assert expected in line
    assert not any((tmp_path / name / "losses.csv").exists() for name in FRAMEWORKS)
