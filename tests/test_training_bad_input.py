"""Bad input is refused with one line on stderr and the same exit status on both sides."""

import runpy
import shutil
import sys

import numpy as np
import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, flags, write_text
from safetensors.numpy import save_file

from parity.twins.launch.processes import ROOT
from parity.twins.training.checkpoint import load_checkpoint
from parity.twins.training.start import train_with


@pytest.fixture(scope="module")
def finished(frameworks, text, cache, tmp_path_factory):
    """Return the folder of a finished run of one step."""
    out = tmp_path_factory.mktemp("finished") / "run"
    job = frameworks["paddle"].train(*flags(data=text, cache=cache, out=out, steps=1))
    assert job.wait()[0] == 0
    return out


def _missing(folder, finished):
    return {"data": folder / "nothing"}, ["nothing: no such folder"]


def _no_texts(folder, finished):
    (folder / "data").mkdir()
    return {"data": folder / "data"}, ["no train text", "train.txt"]


def _empty_file(folder, finished):
    (write_text(folder / "data") / "train.txt").write_text("")
    return {"data": folder / "data"}, ["train.txt"]


def _not_utf8(folder, finished):
    (write_text(folder / "data") / "train.txt").write_bytes(b"a b\nc d\ne \xff f\n")
    return {"data": folder / "data"}, ["train.txt:3", "byte 0xff", "not UTF-8"]


def _too_short(folder, finished):
    write_text(folder / "data", train_tokens=30)
    return {"data": folder / "data"}, ["train.txt", "30 tokens", "7 rows x 5 tokens need 36"]


def _too_few_sentences(folder, finished):
    write_text(folder / "data", train_tokens=20)
    return {"data": folder / "data", "batching": "sentences"}, ["train.txt", "batch of 7"]


def _one_word(folder, finished):
    write_text(folder / "data")
    return {"data": folder / "data", "vocabulary_size": 1}, ["--vocabulary-size is 1", ">= 3"]


def _one_distinct_word(folder, finished):
    data = write_text(folder / "data")
    for split in ("train", "valid", "test"):
        (data / f"{split}.txt").write_text("\n" * 200)
    return {"data": data}, ["train.txt", "at least 2 words are needed"]


def _too_many_replicas(folder, finished):
    return {"replicas": 8}, ["7 rows cannot be shared by 8 replicas", "--replicas <= 7"]


def _gpu(folder, finished):
    return {"device": "gpu"}, ["--device is 'gpu', but ", "allowed: cpu"]


def _out_below_a_file(folder, finished):
    (folder / "file").write_text("")
    return {"out": folder / "file" / "run"}, ["file/run", "cannot be written"]


def _cache_below_a_file(folder, finished):
    (folder / "file").write_text("")
    return {"cache": folder / "file" / "cache"}, ["file/cache"]


def _trace_below_a_file(folder, finished):
    (folder / "file").write_text("")
    return {"trace": folder / "file" / "trace"}, ["file/trace", "cannot be written"]


def _isolate_without_trace(folder, finished):
    return {"isolate": True}, ["--isolate is given without --trace; allowed: with --trace"]


def _run_is_there(folder, finished):
    return {"out": finished}, ["already has a run", "--resume, --overwrite"]


def _other_spec(folder, finished):
    return {"out": finished, "resume": True, "hidden_size": 8, "seed": 2}, [
        "hidden_size 6 there, 8 here",
        "seed 1 there, 2 here",
    ]


def _other_dtype_although_changes_are_allowed(folder, finished):
    return {"out": finished, "resume": True, "dtype": "float64", "allow_change": True}, [
        "dtype 'float32' there, 'float64' here"
    ]


def _other_text(folder, finished):
    data = write_text(folder / "data")
    (data / "test.txt").write_text("w1 w2 w3\n" * 20)
    return {"data": data, "out": finished, "resume": True}, ["corpus"]


def _checkpoint(finished):
    return finished / "checkpoints" / "step-00000001.safetensors"


def _truncated(folder, finished):
    cut = folder / "cut.safetensors"
    cut.write_bytes(_checkpoint(finished).read_bytes()[:-100])
    return {"resume": cut}, ["cut.safetensors", "not a whole safetensors file"]


def _flipped_bit(folder, finished):
    content = bytearray(_checkpoint(finished).read_bytes())
    content[-5] ^= 4
    (folder / "bit.safetensors").write_bytes(content)
    return {"resume": folder / "bit.safetensors"}, ["bit.safetensors", "sha256"]


def _not_a_checkpoint(folder, finished):
    save_file({"weight": np.zeros(3)}, folder / "other.safetensors")
    return {"resume": folder / "other.safetensors"}, ["not a checkpoint of this project"]


def _a_pickle(folder, finished):
    (folder / "model.pdparams").write_bytes(b"\x80\x04}\x94.")
    return {"resume": folder / "model.pdparams"}, ["not a whole safetensors file"]


def _no_such_checkpoint(folder, finished):
    return {"resume": folder / "step-00000001.safetensors"}, ["no such checkpoint"]


def _folder_without_checkpoint(folder, finished):
    (folder / "empty").mkdir()
    return {"resume": folder / "empty"}, ["there is no checkpoint"]


def _checkpoint_of_another_network(folder, finished):
    (folder / "pairs").mkdir()
    for split, words in (("train", "abcdefgh"), ("valid", "ijk"), ("test", "lmn")):
        lines = (f"{a} {b}\t{b} {a}\n" for a in words for b in words if split == "train")
        only = (f"{a}\t{a}\n" for a in words)
        (folder / "pairs" / f"{split}.tsv").write_text("".join([*lines, *only]))
    given = {"network": "seq2seq", "data": folder / "pairs", "time": None, "batch_size": 2}
    given |= {"vocabulary_size": None, "resume": _checkpoint(finished), "allow_change": True}
    given |= {"source_segmenter": "spaces", "target_segmenter": "spaces", "replicas": 1}
    return given, ["network 'language-model' there, 'seq2seq' here"]


CASES = [
    value for name, value in list(globals().items())
    if name.startswith("_") and getattr(value, "__code__", None)
    and value.__code__.co_varnames[:2] == ("folder", "finished")
]  # fmt: skip


# Refused by a process of each framework; the others in this one, where neither is loaded.
IN_PROCESSES = (
    *(_missing, _too_many_replicas, _gpu, _run_is_there, _flipped_bit),
    _trace_below_a_file,  # found once the network is built
)


@pytest.fixture
def refuse(frameworks, monkeypatch, capsys):
    """Return a function that runs both `train.py` and returns framework -> its one line."""

    def in_processes(words) -> dict[str, str]:
        # one after the other, because one folder has one writer
        return {
            name: assert_one_line(*each.train(*words).wait()[::2])
            for name, each in frameworks.items()
        }

    def here(words) -> dict[str, str]:
        lines = {}
        for name, folder in FOLDERS.items():
            script = ROOT / folder / "train.py"
            monkeypatch.setattr(sys, "path", list(sys.path))  # the script changes it
            monkeypatch.setattr(sys, "argv", [str(script), *words])
            before = set(sys.modules)
            module = runpy.run_path(str(script))
            with pytest.raises(SystemExit) as ended:
                train_with(module["STRATEGIES"], module["load_engine"], module["versions"])
            lines[name] = assert_one_line(ended.value.code, capsys.readouterr().err)
            loaded = sys.modules.keys() - before
            assert name not in loaded, "a framework takes seconds to load, for nothing"
        return lines

    return lambda words, real: (in_processes if real else here)(words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_both_trainers_refuse_it_in_one_line(refuse, text, cache, finished, tmp_path, case):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    given = {"data": text, "cache": cache, "out": tmp_path / "run"}
    values, expected = case(tmp_path, finished)
    told = refuse(flags(**given | values), case in IN_PROCESSES)
    for line in told.values():
        for part in expected:
            assert part in line
    if case is not _gpu:  # each names its own package
        assert told["paddle"] == told["tensorflow"]
    left = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert left == before
    assert not (tmp_path / "run" / "checkpoints").exists() or case is _gpu


def test_a_refused_gpu_leaves_no_run_behind(framework, text, cache, tmp_path):
    given = {"data": text, "cache": cache, "out": tmp_path / "run", "steps": 1}
    assert framework.train(*flags(**given, device="gpu")).wait()[0] == 2
    status, _, errors = framework.train(*flags(**given)).wait()
    assert status == 0, errors


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
