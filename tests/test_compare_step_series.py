"""What is kept of every step for the pictures, and how it stays small."""

import json

import numpy as np
import pytest
from oracle_side import compare_sides, recorded_steps, small_pairs_spec, small_spec

from parity.compare.step_series import MOST_POINTS, MOST_SHARE, History
from parity.compare.tensors import Distance, Place
from parity.twins.trace.contents import tensor_names

SIDES = ("paddle-2", "tensorflow-2")
TENSOR = "weight/embed/table"


def add(history, step, loss=(2.0, 2.0), oracle=2.0, relative=0.0, where=True, used=()):
    """Add a step of two sides."""
    losses = dict(zip(SIDES, loss, strict=True))
    place = Place(step, TENSOR, (0,)) if where else None
    distances = {TENSOR: Distance(relative, relative, place)}
    history.add(step, losses, distances, used, dict.fromkeys(SIDES, oracle))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances_are_in_units_in_the_last_place(dtype):
    history = History(dtype, SIDES)
    unit = float(np.spacing(np.dtype(dtype).type(2.5)))
    add(history, 0, (2.5, 2.5 + 3 * unit), 2.5 + 4 * unit)
    found = history.to_json()
    assert found["difference"] == [3.0]
    assert found["from_oracle"] == {"paddle-2": [4.0], "tensorflow-2": [1.0]}
    assert found["loss"]["tensorflow-2"] == [2.5 + 3 * unit]
    assert found["loss"]["oracle"] == [2.5 + 4 * unit]


@pytest.mark.parametrize("steps", [1, MOST_POINTS, MOST_POINTS + 1, 4 * MOST_POINTS + 7])
def test_a_long_run_keeps_the_greatest_of_equal_spans(steps):
    history = History("float64", SIDES)
    draw = np.random.default_rng(1)
    relative = [float(f"{each:.3g}") for each in draw.random(steps)]
    for step in range(steps):
        add(history, step, (float(step), float(step)), relative=relative[step])
    found = history.to_json()
    span, points = found["span"], len(found["steps"])
    assert span == {1: 1, MOST_POINTS: 1, MOST_POINTS + 1: 2, 4 * MOST_POINTS + 7: 8}[steps]
    assert points == -(-steps // span) <= MOST_POINTS
    groups = [range(i, min(i + span, steps)) for i in range(0, steps, span)]
    assert found["steps"] == [group[-1] for group in groups]
    assert found["loss"]["paddle-2"] == [float(group[-1]) for group in groups]
    assert found["relative"][TENSOR] == [max(relative[s] for s in group) for group in groups]


@pytest.mark.parametrize("spec", [small_spec(), small_pairs_spec()], ids=lambda s: s.network)
def test_a_comparison_keeps_every_step_of_the_first_pair(spec):
    steps = recorded_steps(spec, 5)
    off = [dict(tensors) for tensors in steps]
    name = "gradient/softmax/bias"
    off[4][name] = off[4][name] * 1.5
    sides = dict(zip(SIDES, (steps, off), strict=True)) | {
        "paddle-3": recorded_steps(spec, 5, 3)
    }
    found = compare_sides(spec, sides).history.to_json()
    assert found["pair"] == list(SIDES)
    assert found["steps"] == [0, 1, 2, 3, 4]
    assert found["loss"]["paddle-2"] == [float(each["loss/global"]) for each in steps]
    assert found["loss"]["oracle"] == pytest.approx(found["loss"]["paddle-2"], rel=1e-12)
    assert list(found["relative"]) == [
        each
        for each in tensor_names(spec)
        if each in steps[0] and not each.startswith("replicas/")
    ]
    for tensor, relative in found["relative"].items():
        a, b = steps[4][name], off[4][name]
        expected = np.abs(a - b).max() / np.abs(b).max() if tensor == name else 0.0
        assert relative == [0.0] * 4 + [float(f"{expected:.3g}")]


def test_the_largest_share_of_a_bound_is_kept_of_every_span():
    history = History("float64", SIDES)
    for step in range(MOST_POINTS + 2):
        used = {TENSOR: step / 10, "weight/other": np.inf}, {TENSOR: step / 20}
        add(history, step, used=used)
    found = history.to_json()
    largest = [float(f"{step / 10:.3g}") for step in range(1, MOST_POINTS + 2, 2)]
    assert found["used"] == {TENSOR: largest}
    add(history, MOST_POINTS + 2, used=[{TENSOR: np.inf}])
    assert history.to_json()["used"][TENSOR][-1] == MOST_SHARE


def test_what_json_cannot_hold_is_left_out():
    history = History("float32", SIDES)
    add(history, 0, (np.inf, np.nan), np.nan, relative=np.nan)
    add(history, 1, (0.0, 0.0), 0.0, where=False)
    found = history.to_json()
    json.dumps(found, allow_nan=False)
    assert found["loss"] == {"paddle-2": [None, 0.0], "tensorflow-2": [None, 0.0]} | {
        "oracle": [None, 0.0]
    }
    assert found["difference"] == [None, 0.0]
    assert found["relative"][TENSOR] == [None, None], "shapes that differ have no distance"
