"""How a batch is shared among replicas and put together again, and its dropout masks."""

import numpy as np
import pytest
from oracle_side import random_inputs, small_spec

from parity.base.errors import UsageError
from parity.twins.spec.gpus import check_gpus, without_paddle
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.step_arrays import (
    join_activations,
    split_feeds,
)


def test_too_few_rows_are_refused():
    with pytest.raises(
        UsageError, match=r"batch of 3 rows.*4 replicas; allowed: --replicas <= 3"
    ):
        split_rows(3, 4)
    with pytest.raises(UsageError, match="--replicas is 0; allowed: >= 1"):
        split_rows(3, 0)


@pytest.mark.parametrize(
    ("replicas", "stages", "found", "said"),
    [
        (1, 1, 0, "no GPU is found; allowed: cpu"),
        (
            3,
            1,
            2,
            r"--replicas is 3, but the machine has 2 GPUs \(gpu:0, gpu:1\); allowed: 1 to 2",
        ),
        (2, 2, 3, "at --stages 2, but the machine has 3 GPUs .* allowed: 1, or"),
        (2, 1, 1, r"has 1 GPU \(gpu:0\); allowed: 1, or --device cpu"),
        (1, 3, 2, "allowed: fewer stages, or --device cpu"),
    ],
)
def test_too_few_gpus_are_refused(replicas, stages, found, said):
    check_gpus(replicas, stages, replicas * stages)
    with pytest.raises(UsageError, match=said):
        check_gpus(replicas, stages, found)


@pytest.mark.parametrize("capability", [(6, 1), (7, 5), (8, 0), (8, 9)])
def test_paddle_runs_where_it_has_code_for_the_gpu(capability):
    assert without_paddle(capability) == ""


@pytest.mark.parametrize("capability", [(6, 0), (9, 0), (10, 0)])
def test_paddle_has_no_code_for_other_gpus(capability):
    major, minor = capability
    assert f"compute capability {major}.{minor}, which" in without_paddle(capability)


def small_state(rows=5):
    draw = np.random.default_rng(0)
    return {"h": draw.random((rows, 2, 4)), "c": draw.random((rows, 2, 4))}


def test_a_replica_of_empty_rows_alone_keeps_one_step():
    """No framework runs a loop over no time at all."""
    spec = small_spec()
    feeds = split_feeds(spec, random_inputs(spec, [4, 2, 0, 0]), small_state(4), 2)
    assert [feed["tokens"].shape for feed in feeds] == [(2, 4), (2, 1)]
    assert feeds[1]["mask/lstm_0"].shape == (2, 1, 4)
    assert [feed["scale"].tolist() for feed in feeds] == [[1 / 6], [0]]


@pytest.mark.parametrize("stand_ins", [0, 1, 2])
def test_what_stands_in_for_no_token_is_not_recorded(stand_ins):
    spec = small_spec()
    inputs = random_inputs(spec, [1, 2, 0, 0])
    parts = {"token_loss": [np.array([0.5, 0.25, 0.125]), np.full(stand_ins, np.nan)]}
    joined = join_activations(spec, parts, inputs)["forward/token_loss"]
    assert joined.tolist() == [[0.5, 0, 0, 0], [0.25, 0.125, 0, 0], [0] * 4, [0] * 4]
