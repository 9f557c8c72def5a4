"""The published recipes: their numbers as their sources have them, and what they amount to."""

import numpy as np
import pytest

from parity.twins.oracle.training import Oracle
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.spec import preset
from parity.twins.spec.step_arrays import StepInputs


def batch(seed, time, rows, words):
    """Return full rows of random words; from seed 1 on, all targets are the same word."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(0, words, (rows, time))
    targets = np.full_like(tokens, 3) if seed else draw.integers(0, words, (rows, time))
    return {"tokens": tokens, "targets": targets, "lengths": np.full(rows, time)}


def test_on_full_batches_a_loss_per_row_is_a_larger_rate_and_a_tighter_clip():
    """Summing over 20 steps is 20 times the mean: rate 1 and clip 5 become 20 and 5 / 20."""
    per_row = preset("language-model", "zaremba-small").replace(
        vocabulary_size=30, embedding_size=6, hidden_size=6, dtype="float64"
    )
    assert (per_row.text.time, per_row.training.clip_norm) == (20, 5.0)
    per_token = per_row.replace(learning_rate=20.0, clip_norm=0.25, loss_per="token")
    rows, norms = per_row.training.batch_size, []
    oracles = {spec: Oracle(spec, initial_snapshot(spec)) for spec in (per_row, per_token)}
    for step in range(4):
        found = {}
        for spec, oracle in oracles.items():
            arrays = batch(step, spec.text.time, rows, 30)
            inputs = StepInputs(arrays, step > 0, loss_per=spec.training.loss_per)
            found[spec] = oracle.step(inputs, spec.training.learning_rate, [rows])
        row, token = found[per_row], found[per_token]
        assert row["loss/global"] == pytest.approx(20 * token["loss/global"])
        norms.append(float(row["gradient_norm"]))
        for name, array in oracles[per_row].snapshot.items():
            other = oracles[per_token].snapshot[name]
            np.testing.assert_allclose(array, other, rtol=1e-10, atol=1e-14, err_msg=name)
    assert min(norms) < 5 < max(norms)  # with and without clipping
