"""Traces of several ranks, put together as that of one process, and where they disagree."""

import shutil

import numpy as np
import pytest

from parity import Recorder, assert_match
from parity.base.errors import UsageError
from parity.trace.ranks import open_side, rank_folder

INPUTS = np.random.default_rng(1).normal(size=(3, 4, 5))  # [steps, rows, width]
BLOCKS = [[0, 1], [2, 3]]
DEALT = [[0, 2], [1, 3]]


def record(folder, rows, rank=None, *, first=BLOCKS[0], by_hand=False, change=None, cut=False):
    """Record a regression from some rows; its loss is the mean over the rows of all ranks.

    Args:
      first: the rows of rank 0, whose own statistics count.
      by_hand: whether the loop averages the gradients itself, after it has shown local ones.
      change: called with rank, step and tensors before a step is recorded.
      cut: whether the last step is lacking.
    """
    facts = {"ranks": 1 if rank is None else 2, "buffers": ["mean"]}
    folder = rank_folder(folder, rank or 0, facts["ranks"])
    recorder = Recorder(folder, framework="linear", dtype="float64", facts=facts)
    weight = np.ones(5)
    for step in range(3 - cut):
        x, every = INPUTS[step][rows], INPUTS[step]
        y = x @ weight
        gradient = every.T @ (every @ weight) / 2
        weight = weight - 0.1 * gradient
        tensors = {
            "batch/0": x,
            "forward/y": y,
            "forward/time_major": np.stack([x.T, x.T + 1]),  # [2, width, rows]
            "forward/mask": np.ones((5, 5)),
            "loss/loss": np.mean(y**2),
            "activation_gradient/y": 2 * y / len(rows),
            "gradient/w": 2 * x.T @ y / len(rows) if by_hand else gradient,
            **({"clipped_gradient/w": gradient} if by_hand else {}),
            "weight/w": weight,
            "weight/mean": (every[first] if rank is None else x).mean(0),
        }
        if change is not None:
            change(rank, step, tensors)
        recorder.step(step, tensors)
    recorder.close(finished=not cut)
    return folder


def record_ranks(folder, places=BLOCKS, **options):
    for rank, rows in enumerate(places):
        record(folder, rows, rank, **options)
    return folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return record(tmp_path_factory.mktemp("one") / "one", [0, 1, 2, 3])


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("places", [BLOCKS, DEALT], ids=["blocks", "dealt"])
def test_ranks_match_one_process(tmp_path, places, by_hand):
    ranks = record_ranks(tmp_path / "ranks", places, by_hand=by_hand)
    single = record(tmp_path / "one", [0, 1, 2, 3], first=places[0])
    for pair in ((single, ranks), (ranks, single), (ranks, ranks)):
        report = assert_match(*pair)
        tensors = 9 + (by_hand and pair == (ranks, ranks))
        assert (report["steps"], report["tensors"], report["only"]) == (3, tensors, {})
    shown = report._repr_html_().splitlines()  # by a notebook
    assert shown[0].startswith("<pre>match: linear (")
    assert shown[1].startswith("worst relative distances: batch 0.0e+00, forward 0.0e+00, ")


def of_rank_1(name, step, value):
    """Return a change of one tensor, in one step of rank 1."""

    def change(rank, now, tensors):
        if rank == 1 and now == step:
            tensors[name] = value(tensors[name])

    return change


WRONG = {
    "gradient": ("gradient/w", 2, lambda each: each + 1e-15),
    "weight": ("weight/w", 1, lambda each: each * [1, 1, 1, 2, 1]),
    "shape": ("weight/w", 1, lambda each: each[:3]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_must_be_alike_is_named_with_its_rank_and_step(tmp_path, one, case):
    name, step, _ = WRONG[case]
    ranks = record_ranks(tmp_path / "ranks", change=of_rank_1(*WRONG[case]))
    with pytest.raises(AssertionError) as caught:
        assert_match(one, ranks)
    told = " ".join(str(caught.value).split())
    assert told.startswith(f"mismatch in {name}, step {step}: ")
    assert f"rank 1 differs from rank 0 in {name}, step {step}, of linear ({ranks})" in told
    assert "rank 0 and rank 1 differ in" in told


@pytest.mark.parametrize("name", ["batch/0", "forward/y", "loss/loss", "activation_gradient/y"])
def test_a_rank_s_rows_and_its_loss_count(tmp_path, one, name):
    ranks = record_ranks(tmp_path / "ranks", change=of_rank_1(name, 1, lambda each: each * 2))
    with pytest.raises(AssertionError, match=f"^mismatch in {name}, step 1: "):
        assert_match(one, ranks)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_rank_that_is_not_finite_is_named(tmp_path, one, value):
    def change(rank, step, tensors):
        if rank == 1 and step == 2:
            tensors["weight/w"] = np.where(np.arange(5) == 3, value, tensors["weight/w"])

    ranks = record_ranks(tmp_path / "ranks", change=change)
    with pytest.raises(AssertionError, match=rf"rank 1: {value} in weight/w\[3\], step 2"):
        assert_match(one, ranks)


def test_a_tensor_of_one_rank_alone_is_listed(tmp_path, one):
    def more(rank, step, tensors):
        tensors |= {"gradient/expert": np.ones(2)} if rank == 1 else {}

    ranks = record_ranks(tmp_path / "ranks", change=more)
    with pytest.raises(AssertionError, match=r"them:\s+gradient/expert \(rank 1\)"):
        assert_match(one, ranks)
    assert assert_match(one, ranks, allow_missing=True)["steps"] == 3


def test_a_rank_that_was_cut_is_named(tmp_path, one):
    ranks = record_ranks(tmp_path / "ranks")
    record(ranks, BLOCKS[1], 1, cut=True)
    with pytest.raises(AssertionError, match="was rank 1 cut after step 1"):
        assert_match(one, ranks)


def test_a_rank_that_recorded_fewer_steps_is_named(tmp_path, one):
    ranks = record_ranks(tmp_path / "ranks")
    shorter = ranks / "rank-1" / "steps.jsonl"
    shorter.write_bytes(b"".join(shorter.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        AssertionError, match=r"rank 1 recorded \d steps of \d; allowed: the same"
    ):
        assert_match(one, ranks)


def test_a_folder_that_lacks_a_rank_is_refused(tmp_path, one):
    ranks = record_ranks(tmp_path / "ranks")
    with pytest.raises(UsageError, match="holds the trace of one process"):
        rank_folder(one, 0, 2)
    shutil.copytree(ranks / "rank-1", ranks / "rank-2")
    with pytest.raises(UsageError, match="has ranks 0, 1, 2 of a training with 2"):
        open_side(ranks)
    assert rank_folder(ranks, 0, 2) == ranks / "rank-0"
    assert not (ranks / "rank-2").exists()
    shutil.rmtree(ranks / "rank-0")
    with pytest.raises(UsageError, match="has ranks 1 of a training with 2; allowed: all"):
        open_side(ranks)
    header = ranks / "rank-1" / "trace.json"
    header.write_text(header.read_text().replace('"ranks": 2', '"ranks": [2]'))
    with pytest.raises(UsageError, match=r"of a training with \[2\]; allowed: all"):
        open_side(ranks)


MAP = """\
format: 1
a: port
b: linear
units:
- units: [layer, layer]
  kind: Linear
  use: true
  why: alike
  outputs:
    time: {a: {of: rows_first, layout: [{axes: [2, 1, 0]}]}, b: time_major}
"""


def test_names_and_layouts_are_those_of_a_map(tmp_path):
    def rows_first(rank, step, tensors):
        tensors["forward/rows_first"] = tensors.pop("forward/time_major").transpose(2, 1, 0)

    port = record(tmp_path / "port", [0, 1, 2, 3], change=rows_first)
    (tmp_path / "map.yaml").write_text(MAP)
    report = assert_match(
        port,
        record_ranks(tmp_path / "ranks"),
        mapping=tmp_path / "map.yaml",
        include=["batch/*", "loss/*", "forward/time"],
    )
    assert report["tensors"] == 3
