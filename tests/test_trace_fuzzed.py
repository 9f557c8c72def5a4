"""Damaged traces of every kind: one line says what is wrong, without delay."""

import contextlib
import copy
import gc
import io
import json
import math
import reprlib
import resource
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle_side import header, recorded_steps, small_pairs_spec, write_trace
from safetensors.numpy import load_file, save_file

from parity import Recorder, Tolerance
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.trace.folder import crc32, step_file

SECONDS, BYTES = 60, 1 << 30  # that a refusal may take
DEEP = 100_000  # brackets
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, 10**30, 2 * 10**23, 2**63, -(2**70)),
    *("", "x", "paddle", "float32", "0", "\x1b[2J", "é" * 300, [], {}, [1], {"a": 1}, [[]]),
    *([2, 3], {"": None}, math.inf, math.nan, "NESTED"),
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Return kind -> the folders of two traces that match."""
    folder = tmp_path_factory.mktemp("originals")
    spec = small_pairs_spec(num_layers=1)
    steps = recorded_steps(spec, 2)
    found = {
        "seq2seq": [
            write_trace(folder / side, header(spec, side, steps=2), steps)
            for side in ("paddle", "tensorflow")
        ]
    }
    draw = np.random.default_rng(3)
    tensors = {
        "batch/tokens": draw.integers(0, 9, 6),
        "forward/hidden": draw.random((2, 3)),
        "loss/global": draw.random(()),
        "weight/a": draw.random(4),
    }
    facts = {
        "dtype": "float64",
        "run": {"rate": 0.1, "layers": [1, 2]},
        "tolerances": {"forward": Tolerance(1e-3, 0.0, reason="measured")},
    }
    for side in ("original", "port"):
        with Recorder(folder / side, framework=side, **facts) as recorder:
            recorder.step(0, tensors)
            recorder.step(3, tensors)
    return found | {"recorder": [folder / "original", folder / "port"]}


def places(value, path=()):
    """Return the paths of everything in a JSON value but the value itself."""
    found = []
    if isinstance(value, dict):
        inner = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += [(*path, key), *places(each, (*path, key))]
    return found


def mutated(draw, value):
    """Return a JSON value with one to three of its parts replaced or removed, as text."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        known = places(value)
        if not known:
            break
        *path, last = draw(st.sampled_from(known))
        inner = value
        for key in path:
            inner = inner[key]
        if draw(st.integers(0, 4)) == 0:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    nested = "[" * DEEP + "]" * DEEP
    return json.dumps(value).replace('"NESTED"', nested)


def damage_header(draw, folder):
    path = folder / "trace.json"
    path.write_text(mutated(draw, json.loads(path.read_text())))


NUMBERS = (0.0, -1.0, 1e30, -(10.0**18), 1e308, math.nan, math.inf, 7.0, 2.0**53)
TYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint64", "bool")


def damage_tensors(draw, folder):
    """Change some tensors of a step, and their digests with them."""
    index = folder / "steps.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    line = lines[draw(st.integers(0, len(lines) - 1))]
    path = folder / step_file(line["step"])
    tensors = load_file(path)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(tensors)))
        array = np.array(tensors.pop(name))
        how = draw(st.sampled_from(["type", "shape", "value", "values", "removed", "name"]))
        with np.errstate(all="ignore"):
            if how == "type":
                array = array.astype(draw(st.sampled_from(TYPES)))
            elif how == "shape":
                shapes = [(0,), (), (1,), (0, 3), array.shape[::-1], (*array.shape, 1), (2, 70)]
                array = np.resize(array, draw(st.sampled_from(shapes)))
            elif how == "value" and array.size:
                number = np.array(draw(st.sampled_from(NUMBERS))).astype(array.dtype)
                array.flat[draw(st.integers(0, array.size - 1))] = number
            elif how == "values":
                array[...] = np.array(draw(st.sampled_from(NUMBERS))).astype(array.dtype)
        if how == "name":
            name = draw(st.sampled_from(["weight/other", "other", "decode/x", "gradient_norm"]))
        if how != "removed":
            tensors[name] = array
    save_file(tensors, path)
    line["crc32"] = {name: crc32(array) for name, array in tensors.items()}
    index.write_text("".join(json.dumps(each) + "\n" for each in lines))


DAMAGES = (damage_header, damage_tensors)


@pytest.fixture(autouse=True, scope="module")
def _collected():
    """Let earlier tests' files be closed now: what is said of that is none of a command's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def ended(words):
    """Run a command; return its status and what it printed on standard error."""
    errors = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = lambda *given, **_: print(*given, file=errors)
        status = main(parity, list(map(str, words)))
    return status, errors.getvalue()


def assert_told(words):
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, errors = ended(words)
    assert status in (0, 1, 2, 3), errors
    if status in (2, 3):
        assert errors.startswith("error: "), errors
        assert errors.count("\n") == 1, errors
        assert len(errors) < 3000, errors[:100]
    else:
        assert errors == ""
    assert time.monotonic() - began < SECONDS
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < BYTES


LARGE = 10**18
BAD_HEADERS = {
    "deep": (lambda header: "[" * DEEP, "trace.json: cannot be read: nested too deeply"),
    "more layers": (
        lambda header: header["spec"]["model"].update(num_layers=1000),
        "--num-layers is 1000, but a step has ",
    ),
    "units": (
        lambda header: header["spec"]["model"].update(hidden_size=LARGE),
        "has shape [3, 16]; its spec says [3, 4000000000000000000]",
    ),
    "missing": (lambda header: header.pop("corpus") and None, "trace.json: lacks corpus"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_a_header_that_promises_the_impossible_is_refused_at_once(originals, tmp_path, case):
    change, said = BAD_HEADERS[case]
    for name, original in zip("ab", originals["seq2seq"], strict=True):
        shutil.copytree(original, tmp_path / name)
        path = tmp_path / name / "trace.json"
        values = json.loads(path.read_text())
        path.write_text(change(values) or json.dumps(values))
    assert_told(["compare", tmp_path / "a", tmp_path / "b"])
    status, errors = ended(["compare", tmp_path / "a", tmp_path / "b"])
    assert status == 2
    assert said in errors


@pytest.mark.parametrize("step", [2 * 10**23, -1, 0, 1_000_000])
def test_a_step_of_another_number_is_refused(originals, tmp_path, step):
    original = originals["seq2seq"][0]
    shutil.copytree(original, tmp_path / "a")
    path = tmp_path / "a" / "steps.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second | {'step': step})}\n")
    status, errors = ended(["compare", tmp_path / "a", original])
    assert status == 2
    assert f"steps.jsonl, line 2: step is {reprlib.repr(step)}; allowed: 1 to 999999" in errors


@pytest.mark.parametrize("kind", ["seq2seq", "recorder"])
@pytest.mark.parametrize("damage", DAMAGES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_whatever_is_wrong_is_told_in_one_line(originals, kind, damage, data):
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / side for side in ("a", "b")]
        for folder, original in zip(folders, originals[kind], strict=True):
            shutil.copytree(original, folder)
        damage(data.draw, folders[0])
        page = ["--html", Path(name) / "page.html"]
        words = data.draw(st.sampled_from([["compare"], ["report", *page]]))
        assert_told([*words, *folders, "--after-mismatch", "1", "--cause-seconds", "1"])
