"""Dropout masks against their distribution and their keys.

Masks are drawn once and fed to both sides and to the oracle: masks that are all alike, or
scaled wrongly, would be so for all three. Each bound below is six standard deviations of a
normal approximation: one statistic in 500 million exceeds it by chance, of about a thousand.
The seeds are fixed, so a test that passes once passes always.
"""

from itertools import combinations

import numpy as np
import pytest

from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.spec.step_arrays import step_inputs

ROWS, TIME, WIDTH = 24, 16, 32
SIGMAS = 6


class Batch:
    """A batch of one shape whose tokens depend on a seed."""

    carry = False

    def __init__(self, seed=0, lengths=None):
        draw = np.random.default_rng(seed)
        self.source, self.tokens, self.targets = draw.integers(4, 50, (3, ROWS, TIME))
        self.lengths = np.full(ROWS, TIME) if lengths is None else lengths
        self.source_lengths = self.lengths


def language_model(**values):
    model = LanguageModelSpec(50, WIDTH, WIDTH, num_layers=3, keep=0.7)
    return Spec(
        "language-model", model, LanguageModelText(time=TIME), TrainSpec(dtype="float64")
    ).replace(**values)


def seq2seq(**values):
    model = Seq2seqSpec(50, 50, WIDTH, WIDTH, num_layers=2, keep=0.7)
    return Spec("seq2seq", model, PairText(), TrainSpec(dtype="float64")).replace(**values)


NETWORKS = [language_model, seq2seq]
PLACES = {
    language_model: {"embedded", "lstm_0", "lstm_1", "lstm_2"},
    seq2seq: {"source_embedded", "encoder_0", "target_embedded", "decoder_0", "attentional"},
}


def masks_of(spec, step=0, batch=None):
    return step_inputs(spec, step, batch or Batch()).masks


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("keep", [0.35, 0.5, 0.95])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masks_hold_zero_and_one_over_keep_in_the_right_shares(network, keep, dtype):
    """The mean of what passes is that of what enters: E[mask] = keep * 1/keep = 1."""
    masks = masks_of(network(keep=keep, dtype=dtype))
    assert set(masks) == PLACES[network]
    for mask in masks.values():
        assert mask.dtype == np.dtype(dtype)
        assert mask.shape == (ROWS, TIME, WIDTH)
        # the correctly rounded quotient of the two numbers in the run's precision
        one_over = np.float64(np.dtype(dtype).type(keep)) ** -1
        assert sorted(np.unique(mask).tolist()) == [0, float(np.dtype(dtype).type(one_over))]
        kept, count = np.count_nonzero(mask), mask.size
        assert abs(kept - keep * count) < SIGMAS * np.sqrt(keep * (1 - keep) * count)


def correlated(first, second):
    """Return the correlation of two arrays in standard deviations of that of unrelated ones."""
    first, second = first.reshape(-1), second.reshape(-1)
    return abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(first.size)


@pytest.mark.parametrize("network", NETWORKS)
def test_masks_of_places_and_steps_are_unrelated(network):
    spec = network()
    masks = [
        mask for step in (0, 1, 2, 3, 100) for mask in masks_of(spec, step).values()
    ] + list(masks_of(spec.replace(seed=2), 0).values())
    assert max(correlated(*pair) for pair in combinations(masks, 2)) < SIGMAS


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["rows", "time", "units"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_mask_does_not_repeat_along_any_axis(network, axis):
    """Neither rows nor time steps nor units share what is dropped, whatever their distance."""
    for mask in masks_of(network()).values():
        along = np.moveaxis(mask, axis, 0)
        for shift in range(1, len(along)):
            assert correlated(along[:-shift], along[shift:]) < SIGMAS, shift


@pytest.mark.parametrize("network", NETWORKS)
def test_each_row_step_and_unit_is_dropped_as_often_as_any(network):
    """Over 40 steps the share that is kept is right for each row, time step and unit alone."""
    drawn = [masks_of(network(), step) for step in range(40)]
    for place in drawn[0]:
        kept = np.stack([masks[place] > 0 for masks in drawn])
        for axis in (1, 2, 3):
            share = kept.mean(axis=tuple({0, 1, 2, 3} - {axis}))
            count = kept.size / kept.shape[axis]
            assert np.abs(share - 0.7).max() < SIGMAS * np.sqrt(0.7 * 0.3 / count)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_mask_depends_on_seed_step_and_place_alone(network):
    """Neither on the tokens, nor on lengths, nor on which steps were drawn before."""
    spec = network()
    expected = {step: masks_of(spec, step) for step in range(4)}
    lengths = np.arange(ROWS) % TIME + 1
    for step in (3, 1, 0, 2):
        for place, mask in masks_of(spec, step, Batch(9, lengths)).items():
            np.testing.assert_array_equal(mask, expected[step][place])
    for place, mask in masks_of(spec.replace(dtype="float32"), 2).items():
        np.testing.assert_array_equal(mask > 0, expected[2][place] > 0)
    seen = [mask.tobytes() for masks in expected.values() for mask in masks.values()]
    other_seed = masks_of(spec.replace(seed=5), 0)
    seen += [mask.tobytes() for mask in other_seed.values()]
    assert len(set(seen)) == len(seen) == 5 * len(PLACES[network])


@pytest.mark.parametrize("network", NETWORKS)
def test_nothing_is_dropped_without_dropout_or_in_evaluation(network):
    assert masks_of(network(keep=1.0)) == {}
    assert step_inputs(network(), 3, Batch(), train=False).masks == {}
