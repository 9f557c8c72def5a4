"""The canonical table, and the initial weights drawn for it."""

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec

from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.parameters import (
    parameters,
    snapshot_names,
    snapshot_shapes,
    swap_layout,
)

SPEC = small_spec(vocabulary_size=7, embedding_size=3, hidden_size=4, num_layers=2)
TABLE = {
    "embed/table": (7, 3),
    "lstm_0/input_kernel": (3, 16),
    "lstm_0/recurrent_kernel": (4, 16),
    "lstm_0/bias": (16,),
    "lstm_1/input_kernel": (4, 16),
    "lstm_1/recurrent_kernel": (4, 16),
    "lstm_1/bias": (16,),
    "softmax/kernel": (4, 7),
    "softmax/bias": (7,),
}


def test_the_table_lists_every_parameter_in_order():
    assert [(p.name, p.shape) for p in parameters(SPEC)] == list(TABLE.items())


def test_a_snapshot_of_adam_holds_slots_and_powers():
    expected = {f"weight/{name}": shape for name, shape in TABLE.items()}
    for name, shape in TABLE.items():
        expected |= {f"optimizer/{name}/m": shape, f"optimizer/{name}/v": shape}
    expected |= {"optimizer/beta1_power": (), "optimizer/beta2_power": ()}
    assert snapshot_shapes(SPEC) == expected
    assert list(snapshot_names(SPEC)) == list(expected)


def test_a_snapshot_of_sgd_holds_weights_alone():
    expected = {f"weight/{name}": shape for name, shape in TABLE.items()}
    assert snapshot_shapes(SPEC.replace(optimizer="sgd")) == expected


@pytest.mark.parametrize("framework", ["paddle", "tensorflow"])
@pytest.mark.parametrize("name", list(TABLE))
def test_a_layout_swapped_twice_is_the_canonical_one(framework, name):
    array = np.arange(np.prod(TABLE[name])).reshape(TABLE[name])
    there = swap_layout(framework, name, array)
    transposed = framework == "paddle" and name.startswith("lstm") and name.endswith("kernel")
    np.testing.assert_array_equal(there, array.T if transposed else array)
    np.testing.assert_array_equal(swap_layout(framework, name, there), array)


def test_initial_weights_fill_their_interval_with_no_parameter_at_zero():
    spec = SPEC.replace(hidden_size=64, initial_scale=0.05)
    snapshot = initial_snapshot(spec)
    assert {name: array.shape for name, array in snapshot.items()} == snapshot_shapes(spec)
    for parameter in parameters(spec):
        weights = snapshot[f"weight/{parameter.name}"]
        assert weights.min() >= -0.05
        assert weights.max() < 0.05
        if weights.size > 200:
            assert weights.min() < -0.048
            assert weights.max() > 0.048
            assert abs(weights.mean()) < 0.05 / np.sqrt(3 * weights.size) * 4
        assert np.all(weights != 0)


def test_no_two_parameters_share_their_random_numbers():
    snapshot = initial_snapshot(SPEC.replace(embedding_size=4))
    seen = [snapshot[f"weight/{name}"].ravel()[:3] for name in TABLE]
    for i, first in enumerate(seen):
        for second in seen[i + 1 :]:
            assert not np.any(np.isin(first, second))


def test_initial_weights_depend_on_the_seed_alone():
    first, again = initial_snapshot(SPEC), initial_snapshot(SPEC.replace(time=9, keep=1.0))
    other = initial_snapshot(SPEC.replace(seed=4))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        if name.startswith("weight/"):
            assert np.all(first[name] != other[name])


def test_float32_starts_from_the_rounded_weights_of_float64():
    wide, narrow = initial_snapshot(SPEC), initial_snapshot(SPEC.replace(dtype="float32"))
    for name, array in wide.items():
        assert array.dtype == np.float64
        assert narrow[name].dtype == np.float32
        np.testing.assert_array_equal(narrow[name], array.astype(np.float32))


def test_adam_starts_at_zero_and_at_the_first_powers():
    snapshot = initial_snapshot(SPEC.replace(beta1=0.8, beta2=0.99))
    assert snapshot["optimizer/beta1_power"] == 0.8
    assert snapshot["optimizer/beta2_power"] == 0.99
    slots = [a for name, a in snapshot.items() if name.endswith(("/m", "/v"))]
    assert len(slots) == 2 * len(TABLE)
    assert not any(array.any() for array in slots)


def test_a_text_starts_from_a_state_of_zeros():
    state = zero_state(SPEC.replace(dtype="float32"), 3)
    assert list(state) == ["h", "c"]
    for part in state.values():
        assert part.shape == (3, 2, 4)
        assert part.dtype == np.float32
        assert not part.any()
    assert state["h"] is not state["c"]


def test_pairs_carry_no_state():
    assert zero_state(small_pairs_spec(), 3) == {}
