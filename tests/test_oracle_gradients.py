"""The oracle's gradients against finite differences."""

import itertools

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec, text_batch

from parity.twins.oracle.language_model import network_function
from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.step_arrays import step_inputs

LANGUAGE_MODELS = [(1, 1.0), (1, 0.75), (2, 0.75), (3, 1.0)]
SEQ2SEQ = [
    *itertools.product(
        ("lstm", "gru"), ("dot", "general", "scaled", "bahdanau"), (False, True), (True,), (2,)
    ),
    ("lstm", "bahdanau", True, False, 3),
    ("gru", "general", False, False, 1),
]
SPECS = [
    small_spec(num_layers=n, keep=keep, batching="sentences") for n, keep in LANGUAGE_MODELS
]
SPECS += [
    small_pairs_spec(
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=bidirectional,
        num_layers=layers,
    )
    for cell, attention, feeding, bidirectional, layers in SEQ2SEQ
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str([*spec.model.__dict__.values()]))
def test_gradients_are_those_of_central_differences(spec):
    """Along directions at random, in which a mistake in any element of a parameter shows."""
    spec = spec.replace(initial_scale=0.7)
    inputs, draw = step_inputs(spec, 1, text_batch(spec, 1)), np.random.default_rng(6)
    zeros = zero_state(spec, spec.training.batch_size)
    state = {name: draw.normal(size=array.shape) * 0.5 for name, array in zeros.items()}
    weights = {
        name.split("/", 1)[1]: array
        for name, array in initial_snapshot(spec).items()
        if name.startswith("weight/")
    }

    def run(weights):
        network = network_function(spec.network)
        return network(spec.model, weights, inputs.batch, inputs.masks, state)

    def loss(name, array):
        activations, _ = run(weights | {name: array})
        return activations["token_loss"].sum() / inputs.num_tokens

    _, gradients = run(weights)
    assert set(gradients) == set(weights)
    step = 1e-5
    for name, array in weights.items():
        for _ in range(2):
            direction = draw.normal(size=array.shape)
            ahead, behind = (loss(name, array + sign * step * direction) for sign in (1, -1))
            numeric = (ahead - behind) / (2 * step)
            assert abs(numeric) > 1e-7, name
            found = (gradients[name] * direction).sum()
            assert found == pytest.approx(numeric, rel=1e-6, abs=2e-10), name
