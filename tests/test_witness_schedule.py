"""The schedule against what was published, and what the loop gives to every step.

The learning rate, the state that is carried, the masks' step and the count of tokens are chosen
by one training loop for both sides, and the oracle gets its rate from the same function.
"""

import numpy as np
import pytest
from oracle_side import Batches, small_spec, text

from parity.twins.spec.spec import learning_rate, preset
from parity.twins.spec.step_arrays import StepResult
from parity.twins.training.meter import Meter
from parity.twins.training.train_steps import train_steps

# Zaremba et al. 2014, section 4.1: for 4 epochs at rate 1, then halved with each; for 6, then
# divided by 1.25 (TensorFlow's ptb_word_lm.py); for 14, then divided by 1.15.
SMALL = [1.0] * 4 + [0.5**k for k in range(1, 10)]
MEDIUM = [1.0] * 6 + [1.25**-k for k in range(1, 34)]
LARGE = [1.0] * 14 + [1.15**-k for k in range(1, 42)]
TINY = [0.02, 0.02, 0.02, 0.008, 0.0032]
PAIRS_START = [0.005] * 30 + [0.00465, 0.0043245, 0.0040218]
PROOF_START = [2.0, 1.94, 1.8818, 1.8253, 1.7706]
PAIRS_PROOF_START = [0.015, 0.0147, 0.014406, 0.014118, 0.013836]
STARTS = (PAIRS_START, PROOF_START, PAIRS_PROOF_START)  # of more epochs than are typed in
RATES = [
    ("language-model", "zaremba-small", 13, SMALL),
    ("language-model", "zaremba-medium", 39, MEDIUM),
    ("language-model", "zaremba-large", 55, LARGE),
    ("language-model", "tiny", 5, TINY),
    ("language-model", "proof", 9, PROOF_START),
    ("language-model", "tf2fluid", 5, [1e-3] * 5),
    ("seq2seq", "tiny", 70, PAIRS_START),
    ("seq2seq", "proof", 12, PAIRS_PROOF_START),
    ("seq2seq", "chatbot", 10, [1e-3] * 10),
]


@pytest.mark.parametrize(("network", "name", "epochs", "rates"), RATES)
def test_the_rate_of_every_epoch_is_the_published_one(network, name, epochs, rates):
    training = preset(network, name).training
    assert training.epochs == epochs
    assert len(rates) == epochs or rates in STARTS
    found = [learning_rate(training, epoch) for epoch in range(len(rates))]
    assert found == pytest.approx(rates, rel=5e-5)


class Listening:
    """Trains nothing: keeps what each step is given, and returns a state of its own making.

    The state after step n (from 0) is n + 1 everywhere.
    """

    framework, replicas = "numpy", 2

    def __init__(self, spec):
        self.spec = spec
        self.inputs, self.states, self.rates = [], [], []

    def step(self, inputs, state, rate):
        self.inputs.append(inputs)
        self.states.append({name: array.copy() for name, array in state.items()})
        self.rates.append(rate)
        count = float(len(self.rates))
        after = {name: np.full_like(array, count) for name, array in state.items()}
        return StepResult(np.array([0.5, 0.25]), after, 1.0, {})


def listen(spec, per_epoch, steps):
    """Run the training loop; return what the steps were given, and the meter."""
    listening, meter = Listening(spec), Meter()
    for _ in train_steps(listening, text(spec, per_epoch), steps, meter):
        pass
    return listening, meter


def test_every_step_is_trained_at_the_rate_of_its_epoch():
    spec = small_spec(learning_rate=8.0, decay=0.25, decay_after=2)
    listening, _ = listen(spec, 3, 12)
    assert listening.rates == [8.0] * 6 + [2.0] * 3 + [0.5] * 3


def test_the_state_is_carried_within_an_epoch_and_zero_at_its_start():
    listening, _ = listen(small_spec(), 3, 9)
    values = [0, 1, 2, 0, 4, 5, 0, 7, 8]  # the steps before, and zero at the start of an epoch
    for state, value in zip(listening.states, values, strict=True):
        assert set(state) == {"h", "c"}
        for array in state.values():
            assert array.shape == (5, 2, 4)  # rows, layers, units
            assert (array == value).all()


def test_sentences_carry_no_state():
    listening, _ = listen(small_spec(batching="sentences"), 3, 5)
    assert not any(array.any() for state in listening.states for array in state.values())


def test_every_step_reads_its_own_batch_and_masks():
    """Batches come in order; no step has the masks of another, not even in the next epoch."""
    spec = small_spec()
    listening, _ = listen(spec, 3, 9)
    batches = Batches(spec, 3)
    for step, inputs in enumerate(listening.inputs):
        np.testing.assert_array_equal(inputs.batch["tokens"], batches.batch(step).tokens)
        np.testing.assert_array_equal(inputs.batch["targets"], batches.batch(step).targets)
    masks = {inputs.masks["embedded"].tobytes() for inputs in listening.inputs}
    assert len(masks) == 9


def test_the_meter_counts_the_real_targets_of_the_batches():
    spec = small_spec(batching="sentences")
    listening, meter = listen(spec, 3, 6)
    counts = [
        sum(int(length) for length in batch.lengths)
        for batch in map(Batches(spec, 3).batch, range(6))
    ]
    assert [step.tokens for step in meter.steps] == counts
    padded = [inputs.batch["tokens"].size for inputs in listening.inputs]
    assert all(count < size for count, size in zip(counts, padded, strict=True))


@pytest.mark.parametrize("loss_per", ["token", "row"])
def test_the_loss_is_divided_by_what_the_spec_says(loss_per):
    """A step's scale is one over the tokens, or the rows; its report is per token."""
    listening, _ = listen(small_spec(batching="sentences", loss_per=loss_per), 3, 4)
    for inputs in listening.inputs:
        tokens = sum(inputs.batch["lengths"].tolist())
        assert inputs.loss_divisor == (tokens if loss_per == "token" else 5)
        # a sum of 6 nats over all tokens, however it was divided
        reported = inputs.per_token(6 / inputs.loss_divisor)
        assert reported == pytest.approx(6 / tokens, rel=1e-15)
