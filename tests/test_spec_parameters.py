"""The canonical table, and the initial weights drawn for it."""

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec

from parity.twins.spec.initial import zero_state
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


def test_pairs_carry_no_state():
    assert zero_state(small_pairs_spec(), 3) == {}
