"""Checkpoints: whole or not at all, refused when damaged, and the newest whole one found."""

import dataclasses
import os

import numpy as np
import pytest
from conftest import one_line
from oracle_side import small_pairs_spec, small_spec
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from parity.base.errors import UsageError
from parity.twins.spec.initial import initial_snapshot
from parity.twins.training.checkpoint import (
    Checkpoint,
    best_checkpoint,
    check_fits,
    keep_best,
    load_checkpoint,
    newest_checkpoint,
    newest_first,
    save_checkpoint,
)

SPEC = small_spec()
CORPUS = "a" * 64


def checkpoint(step=3, spec=SPEC, **values) -> Checkpoint:
    draw = np.random.default_rng(step)
    snapshot = {
        name: np.asarray(array + step, spec.training.dtype)
        for name, array in initial_snapshot(spec).items()
    }
    shape = spec.training.batch_size, spec.model.num_layers, spec.model.hidden_size
    state = {name: draw.random(shape).astype(spec.training.dtype) for name in "hc"}
    whole = Checkpoint(spec, step, snapshot, state, CORPUS, "paddle")
    return dataclasses.replace(whole, **values)


def names(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"step": [3], "valid_perplexity": 2.0}',
        b'{"step": 77, "valid_perplexity": 2.0}',  # of which there is no checkpoint
        b'{"step": 3, "valid_perplexity": NaN}',
        b'{"step": 3, "valid_perplexity": 2.0, "valid_bleu": "9"}',
    ],
    ids=range(7),
)
def test_a_damaged_note_of_the_best_names_none(tmp_path, content):
    save_checkpoint(tmp_path, checkpoint(3))
    (tmp_path / "best.json").write_bytes(content)
    assert best_checkpoint(tmp_path) is None
    keep_best(tmp_path, 3, 5.0)
    assert best_checkpoint(tmp_path).step == 3


def test_the_best_has_the_highest_bleu_and_of_equals_the_lowest_perplexity(tmp_path):
    for step, perplexity, bleu, best in (
        (1, 9.0, 0.0, 1),
        (2, 8.0, 0.0, 2),
        (3, 7.0, 30.0, 3),
        (4, 2.0, 29.9, 3),
        (5, 7.5, 30.0, 3),
        (6, 7.5, 30.1, 6),
    ):
        save_checkpoint(tmp_path, checkpoint(step))
        keep_best(tmp_path, step, perplexity, bleu)
        assert best_checkpoint(tmp_path).step == best


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: is a pipe; allowed: a file"):
        load_checkpoint(tmp_path / "pipe")


@pytest.mark.parametrize("read", [newest_first, best_checkpoint])
def test_a_note_that_is_a_pipe_is_not_waited_for(tmp_path, read):
    for name in ("latest", "best.json"):
        os.mkfifo(tmp_path / name)
    assert not read(tmp_path)


def test_transposed_arrays(tmp_path):
    given = checkpoint()
    turned = {name: np.asarray(array, order="F") for name, array in given.snapshot.items()}
    path = save_checkpoint(tmp_path, dataclasses.replace(given, snapshot=turned))
    found = load_checkpoint(path)
    for name, array in given.snapshot.items():
        np.testing.assert_array_equal(found.snapshot[name], array)


def test_two_newest_are_kept_and_the_pointer_is_relative(tmp_path):
    for step in (1, 2, 3, 10):
        path = save_checkpoint(tmp_path, checkpoint(step))
        assert (tmp_path / "latest").read_text() == path.name + "\n"
    assert names(tmp_path) == {
        "latest",
        "step-00000003.safetensors",
        "step-00000010.safetensors",
    }
    notes = []
    assert newest_checkpoint(tmp_path, notes).step == 10
    assert notes == []


def test_saving_the_same_step_again_keeps_the_one_before(tmp_path):
    for step in (1, 2, 2, 2):
        save_checkpoint(tmp_path, checkpoint(step))
    assert names(tmp_path) == {
        "latest",
        "step-00000001.safetensors",
        "step-00000002.safetensors",
    }


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"../secret\n", b"step-00000009"])
def test_a_pointer_that_is_lost_or_damaged_is_done_without(tmp_path, content):
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step))
    (tmp_path / "latest").unlink()
    if content is not None:
        (tmp_path / "latest").write_bytes(content)
    assert newest_checkpoint(tmp_path, []).step == 2


def test_files_of_others_stay(tmp_path):
    others = ["notes.txt", "step-1.safetensors", "step-00000001.safetensors.bak"]
    for name in others:
        (tmp_path / name).write_text("mine")
    for step in range(1, 5):
        save_checkpoint(tmp_path, checkpoint(step))
    assert set(others) < names(tmp_path)


# damage


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tmp_path, checkpoint())


def test_a_file_that_is_too_short_or_too_long_is_refused(saved):
    content = saved.read_bytes()
    parts = [content[: len(content) * tenth // 10] for tenth in range(10)]
    for wrong in (*parts, content[:-1], content + b"\0"):
        saved.write_bytes(wrong)
        with pytest.raises(UsageError) as caught:
            load_checkpoint(saved)
        assert f"{saved}: not a whole safetensors file" in one_line(caught)


def test_a_name_that_is_too_long_is_said_once(tmp_path):
    path = tmp_path / ("a" * 300)
    with pytest.raises(UsageError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == f"{path}: cannot be read: File name too long"


def test_one_flipped_bit_anywhere_is_refused(saved):
    content = saved.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    # every byte of the length, the header's in turn with each bit, the data at some
    places = [*range(8), *range(8, header, 3), *np.linspace(header, len(content) - 1, 60)]
    for number, place in enumerate(map(int, places)):
        changed = bytearray(content)
        changed[place] ^= 1 << number % 8
        saved.write_bytes(changed)
        with pytest.raises(UsageError) as caught:
            load_checkpoint(saved)
        assert str(saved) in one_line(caught)
    saved.write_bytes(content)
    assert load_checkpoint(saved).step == 3


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "none")
    with pytest.raises(UsageError) as caught:
        load_checkpoint(tmp_path)
    one_line(caught)


def test_safetensors_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "file"
    for metadata in (None, {"format": "pt"}, {"format": "1"}, {"format": "3"}):
        save_file({"weight/x": np.zeros(3)}, path, metadata)
        with pytest.raises(UsageError, match="not a checkpoint of this project: format is"):
            load_checkpoint(path)


def test_swapped_tensors_and_another_step_do_not_fit_the_hash(saved):
    tensors = load_file(saved)
    with safe_open(saved, framework="numpy") as file:
        metadata = dict(file.metadata())
    names = "weight/lstm_0/bias", "weight/lstm_1/bias"
    swapped = tensors | dict(zip(names, (tensors[name] for name in names[::-1]), strict=True))
    for each, other in ((swapped, metadata), (tensors, metadata | {"step": "4"})):
        save_file(each, saved, other)
        with pytest.raises(UsageError, match="damaged: its content does not fit its sha256"):
            load_checkpoint(saved)


def test_none_whole_is_an_error_and_none_at_all_is_none(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere", []) is None
    assert newest_checkpoint(tmp_path, []) is None
    for step in (1, 2):
        save_checkpoint(tmp_path, checkpoint(step)).write_bytes(b"")
    with pytest.raises(UsageError, match="none of 2 checkpoints is whole; skipped"):
        newest_checkpoint(tmp_path, [])


def test_the_same_run_fits_and_may_be_longer():
    check_fits(checkpoint(), SPEC, CORPUS, allow_change=False)
    check_fits(checkpoint(), SPEC.replace(epochs=50), CORPUS, allow_change=False)


def test_differences_are_listed_key_by_key():
    other = SPEC.replace(hidden_size=8, keep=0.5, seed=9, learning_rate=0.5)
    with pytest.raises(UsageError) as caught:
        check_fits(checkpoint(), other, "b" * 64, allow_change=False)
    assert one_line(caught) == (
        "the checkpoint is of another run: hidden_size 4 there, 8 here, "
        "keep 0.75 there, 0.5 here, learning_rate 0.01 there, 0.5 here, "
        "seed 3 there, 9 here, corpus 'aaaaaaaaaaaa' there, 'bbbbbbbbbbbb' here"
    )


@pytest.mark.parametrize("allow_change", [False, True])
def test_another_network_never_fits(allow_change):
    """Those fields that both networks have are told, as far as they differ."""
    pairs = small_pairs_spec(keep=0.5)
    there = checkpoint()
    with pytest.raises(UsageError) as caught:
        check_fits(there, pairs, CORPUS, allow_change=allow_change)
    segmenter = ", target_segmenter {!r} there, {!r} here"
    text = "" if allow_change else segmenter.format("auto", "chinese")
    assert one_line(caught) == (
        "the checkpoint is of another run: network 'language-model' there, 'seq2seq' here, "
        f"keep 0.75 there, 0.5 here{text}"
    )
    there = dataclasses.replace(there, spec=small_pairs_spec(), snapshot={}, state=None)
    with pytest.raises(UsageError) as caught:
        check_fits(there, SPEC, CORPUS, allow_change=allow_change)
    text = "" if allow_change else segmenter.format("chinese", "auto")
    assert one_line(caught) == (
        "the checkpoint is of another run: network 'seq2seq' there, 'language-model' here"
        f"{text}"
    )
