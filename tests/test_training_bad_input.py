"""Bad input is refused with one line on stderr and the same exit status on both sides."""

import shutil

import numpy as np
import pytest
from conftest import FRAMEWORKS, ONE_FRAMEWORK, assert_one_line, ended, flags, write_text

from parity.twins.training.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def finished(frameworks, text, cache, tmp_path_factory):
    """Return the folder of a finished run of one step."""
    out = tmp_path_factory.mktemp("finished") / "run"
    job = frameworks["paddle"].train(*flags(data=text, cache=cache, out=out, steps=1))
    assert job.wait()[0] == 0
    return out


def _too_short(folder, finished):
    write_text(folder / "data", train_tokens=30)
    return {"data": folder / "data"}, ["train.txt", "30 tokens", "7 rows x 5 tokens need 36"]


def _one_distinct_word(folder, finished):
    data = write_text(folder / "data")
    for split in ("train", "valid", "test"):
        (data / f"{split}.txt").write_text("\n" * 200)
    return {"data": data}, ["train.txt", "at least 2 words are needed"]


def _too_many_replicas(folder, finished):
    return {"replicas": 8}, ["7 rows cannot be shared by 8 replicas", "--replicas <= 7"]


def _gpu(folder, finished):
    return {"device": "gpu"}, ["--device is 'gpu', but ", "allowed: cpu"]


def _trace_below_a_file(folder, finished):
    (folder / "file").write_text("")
    return {"trace": folder / "file" / "trace"}, ["file/trace", "cannot be written"]


def _run_is_there(folder, finished):
    return {"out": finished}, ["already has a run", "--resume, --overwrite"]


def _other_text(folder, finished):
    data = write_text(folder / "data")
    (data / "test.txt").write_text("w1 w2 w3\n" * 20)
    return {"data": data, "out": finished, "resume": True}, ["corpus"]


CASES = [
    value for name, value in list(globals().items())
    if name.startswith("_") and getattr(value, "__code__", None)
    and value.__code__.co_varnames[:2] == ("folder", "finished")
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_both_trainers_refuse_it_in_one_line(frameworks, text, cache, finished, tmp_path, case):
    """One case of each kind: both sides refuse by the same code, which has tests of its own."""
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    given = {"data": text, "cache": cache, "out": tmp_path / "run"}
    values, expected = case(tmp_path, finished)
    words, told = flags(**given | values), {}
    for name, each in frameworks.items():  # one after the other: one folder has one writer
        told[name] = assert_one_line(*each.train(*words).wait()[::2])
        for part in expected:
            assert part in told[name]
    if case is not _gpu:  # each names its own package
        assert told["paddle"] == told["tensorflow"]
    left = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert left == before
    assert not (tmp_path / "run" / "checkpoints").exists() or case is _gpu


@ONE_FRAMEWORK
def test_a_refused_gpu_leaves_no_run_behind(framework, text, cache, tmp_path):
    given = {"data": text, "cache": cache, "out": tmp_path / "run", "steps": 1}
    assert framework.train(*flags(**given, device="gpu")).wait()[0] == 2
    ended(framework.train(*flags(**given)))


@ONE_FRAMEWORK
def test_a_loss_that_is_not_finite_stops_the_run(framework, text, cache, tmp_path):
    """Weights of 1e200 are finite, but their products are not: the next step finds that."""
    given = {"data": text, "cache": cache, "out": tmp_path / "run", "dtype": "float32"}
    given |= {"checkpoint_every": 1, "optimizer": "sgd"}
    assert framework.train(*flags(**given, steps=2)).wait()[0] == 0
    status, _, errors = framework.train(
        *flags(
            **given | {"learning_rate": 1e37, "clip_norm": 1e3},
            resume=True,
            allow_change=True,
        )
    ).wait()
    line = assert_one_line(status, errors, 3)
    assert "step " in line
    assert "replica" in line
    assert any(tensor in line for tensor in ("loss", "state", "gradient", "weight/"))
    files = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    for path in files:
        held = load_checkpoint(path).snapshot
        assert all(np.all(np.isfinite(array)) for array in held.values())
    assert load_checkpoint(files[0]).step >= 2
    assert not (tmp_path / "run" / "checkpoints" / "step-00000015.safetensors").exists()


def test_recording_a_trace_removes_nobodys_files(frameworks, finished, text, cache, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    given = flags(data=text, cache=cache, trace=out / "checkpoints", steps=1)
    jobs = [frameworks[name].train(*given) for name in FRAMEWORKS]
    for job in jobs:
        assert_one_line(*job.wait()[::2])
    assert load_checkpoint(out / "checkpoints" / "step-00000001.safetensors").step == 1
