"""Initial values against their distribution; the optimiser's and the text's start by hand.

Every training, the oracle's included, starts from the same arrays. All bounds are those of six
standard deviations, or of a chance of the same size; the seeds are fixed, so a test that passes
once passes always.
"""

from itertools import combinations

import numpy as np
import pytest

from parity.twins.spec.initial import initial_snapshot, zero_state
from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec

SIGMAS = 6
# Kolmogorov: of n values, the largest distance of the two cumulative distributions exceeds
# 3.3 / sqrt(n) by chance with a probability of 2 exp(-2 * 3.3^2), once in 10^9.
KOLMOGOROV = 3.3


def language_model(**values):
    model = LanguageModelSpec(300, 64, 48, num_layers=3, initial_scale=0.25)
    training = TrainSpec(optimizer="adam", dtype="float64")
    return Spec("language-model", model, LanguageModelText(), training).replace(**values)


def seq2seq(**values):
    model = Seq2seqSpec(
        *(300, 280, 64, 48), num_layers=2, attention="scaled", bidirectional=True
    )
    training = TrainSpec(optimizer="adam", dtype="float64")
    return Spec("seq2seq", model, PairText(), training).replace(**values)


NETWORKS = [language_model, seq2seq]


def weights_of(spec):
    """Return the weights by parameter; the scalar of scaled attention is one of them."""
    return {
        name.removeprefix("weight/"): array
        for name, array in initial_snapshot(spec).items()
        if name.startswith("weight/")
    }


def shares(values, low, high):
    """Return where the values lie between two bounds, 0 to 1, in ascending order."""
    return np.sort((values.reshape(-1) - low) / (high - low))


@pytest.mark.parametrize("scale", [0.04, 0.1, 0.25])
@pytest.mark.parametrize("network", NETWORKS)
def test_weights_are_uniform_between_plus_and_minus_the_scale(network, scale):
    """Biases too: range, mean, variance, and the whole distribution of every parameter."""
    weights = weights_of(network(initial_scale=scale))
    assert len(weights) == {language_model: 12, seq2seq: 22}[network]
    for name, values in weights.items():
        middle, count = (1.0 if name == "attention/scale" else 0.0), values.size
        assert values.min() >= middle - scale
        assert values.max() < middle + scale
        if count == 1:
            continue
        assert abs(values.mean()) < SIGMAS * scale / np.sqrt(3 * count), name
        # the variance of a uniform variable is s^2 / 3, that of its square 4 s^4 / 45
        off = abs(np.mean(values**2) - scale**2 / 3)
        assert off < SIGMAS * scale**2 * np.sqrt(4 / 45 / count), name
        share = shares(values, -scale, scale)
        steps = np.arange(count + 1) / count
        furthest = max(np.max(steps[1:] - share), np.max(share - steps[:-1]))
        assert furthest < KOLMOGOROV / np.sqrt(count), name


@pytest.mark.parametrize("network", NETWORKS)
def test_parameters_and_seeds_are_unrelated(network):
    weights = weights_of(network()), weights_of(network(seed=2))
    flat = [values.reshape(-1) for each in weights for values in each.values()]
    flat = [values for values in flat if values.size > 30]
    for first, second in combinations(flat, 2):
        count = min(len(first), len(second))
        related = abs(np.corrcoef(first[:count], second[:count])[0, 1])
        assert related < SIGMAS / np.sqrt(count)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_gates_of_a_layer_start_from_different_values(network):
    """With equal gates an order of gates that is wrong would not show."""
    kernels = [
        (name, values)
        for name, values in weights_of(network()).items()
        if "lstm" in name and values.ndim == 2
    ]
    assert kernels
    for name, kernel in kernels:
        gates = np.split(kernel, 4, axis=1)
        for first, second in combinations(gates, 2):
            related = abs(np.corrcoef(first.reshape(-1), second.reshape(-1))[0, 1])
            assert related < SIGMAS / np.sqrt(first.size), name


@pytest.mark.parametrize("network", NETWORKS)
def test_float32_starts_from_the_same_values_rounded_to_the_nearest(network):
    wide, narrow = initial_snapshot(network()), initial_snapshot(network(dtype="float32"))
    assert list(wide) == list(narrow)
    for name, values in wide.items():
        assert values.dtype == np.float64
        assert narrow[name].dtype == np.float32
        # half the distance to the next float32
        distance = np.spacing(np.abs(narrow[name])).astype(np.float64)
        assert (np.abs(narrow[name].astype(np.float64) - values) <= distance / 2).all()
    # drawn in float64: a float32 generator would leave no digits to round
    fine = [np.any(values != narrow[name]) for name, values in wide.items() if values.any()]
    assert all(fine)


@pytest.mark.parametrize("network", NETWORKS)
def test_adam_starts_as_in_its_paper(network):
    """Kingma & Ba 2015, algorithm 1: m and v are zero; update t = 1 divides by 1 - beta^1."""
    snapshot = initial_snapshot(network())
    parameters = [name for name in snapshot if name.startswith("weight/")]
    slots = [name for name in snapshot if name.startswith("optimizer/")]
    assert len(slots) == 2 * len(parameters) + 2
    assert snapshot["optimizer/beta1_power"] == 0.9
    assert snapshot["optimizer/beta2_power"] == 0.999
    for name in parameters:
        for slot in ("m", "v"):
            values = snapshot[f"optimizer/{name.removeprefix('weight/')}/{slot}"]
            assert values.shape == snapshot[name].shape
            assert not values.any()


def test_sgd_starts_from_weights_alone():
    snapshot = initial_snapshot(language_model(optimizer="sgd"))
    assert all(name.startswith("weight/") for name in snapshot)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_text_starts_from_a_state_of_zeros(dtype):
    state = zero_state(language_model(dtype=dtype), rows=7)
    assert set(state) == {"h", "c"}
    for values in state.values():
        assert values.shape == (7, 3, 48)
        assert values.dtype == np.dtype(dtype)
        assert values.tobytes() == bytes(values.nbytes)  # +0, every one of them
    assert zero_state(seq2seq(), rows=7) == {}
