"""A batch shared among replicas and put together again, with a number of its own everywhere.

Both sides are fed by one function and their activations are joined by another before anything
is compared: a value lost, moved or set to zero there would be so on both sides. Here each value
is a different number, and a plain loop says where it belongs.
"""

import numpy as np
import pytest

from parity.twins.spec.networks.language_model import LanguageModelSpec, LanguageModelText
from parity.twins.spec.networks.seq2seq import PairText, Seq2seqSpec
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec, TrainSpec
from parity.twins.spec.step_arrays import (
    StepInputs,
    join_activations,
    split_feeds,
)

SIZES = {1: [5], 2: [3, 2], 3: [2, 2, 1], 4: [2, 1, 1, 1], 5: [1, 1, 1, 1, 1]}
LENGTHS = [3, 0, 4, 1, 0]  # of five rows, and so the last of 3 replicas has nothing to do
SOURCE_LENGTHS = [2, 5, 1, 3, 1]
PAIR_LENGTHS = [3, 1, 1, 4, 2]
TIME, SOURCE_TIME, LAYERS, UNITS = 4, 5, 2, 3


def numbers(*shape, start=1):
    """Return an array of which no two elements are equal."""
    return np.arange(start, start + np.prod(shape), dtype=np.float64).reshape(shape)


def stream(loss_per="token"):
    """Return a language model's spec, its inputs, and the state before them."""
    model = LanguageModelSpec(9, UNITS, UNITS, LAYERS, keep=0.5)
    training = TrainSpec(dtype="float64", loss_per=loss_per)
    spec = Spec("language-model", model, LanguageModelText(time=TIME), training)
    tokens, targets = numbers(2, 5, TIME).astype(np.int64)
    batch = {"tokens": tokens, "targets": targets, "lengths": np.array(LENGTHS)}
    places = ("embedded", "lstm_0", "lstm_1")
    masks = {
        place: numbers(5, TIME, UNITS, start=1000 * (k + 1)) for k, place in enumerate(places)
    }
    state = {
        name: numbers(5, LAYERS, UNITS, start=9000 + 100 * k) for k, name in enumerate("hc")
    }
    return spec, StepInputs(batch, True, masks, loss_per=loss_per), state


def pairs(loss_per="token"):
    """Return a seq2seq network's spec, its inputs, and no state."""
    model = Seq2seqSpec(9, 9, UNITS, UNITS, LAYERS, keep=0.5)
    training = TrainSpec(dtype="float64", loss_per=loss_per)
    source = numbers(5, SOURCE_TIME).astype(np.int64)
    tokens, targets = numbers(2, 5, TIME).astype(np.int64)
    batch = {
        "source": source,
        "source_lengths": np.array(SOURCE_LENGTHS),
        "tokens": tokens,
        "targets": targets,
        "lengths": np.array(PAIR_LENGTHS),
    }
    times = {
        "source_embedded": SOURCE_TIME,
        "encoder_0": SOURCE_TIME,
        "target_embedded": TIME,
        "decoder_0": TIME,
        "attentional": TIME,
    }
    masks = {
        place: numbers(5, time, UNITS, start=1000 * (k + 1))
        for k, (place, time) in enumerate(times.items())
    }
    return Spec("seq2seq", model, PairText(), training), StepInputs(batch, False, masks), {}


def real_steps(name, row, inputs):
    """Return how many time steps of a row of an array are real."""
    of_source = name in {"source", "mask/source_embedded", "mask/encoder_0"}
    return int(inputs.batch["source_lengths" if of_source else "lengths"][row])


BATCHES = [stream, pairs]


@pytest.mark.parametrize("replicas", SIZES)
def test_rows_are_shared_evenly_the_first_replicas_first(replicas):
    assert split_rows(5, replicas) == SIZES[replicas]
    assert split_rows(20, 3) == [7, 7, 6]
    assert split_rows(61, 2) == [31, 30]


@pytest.mark.parametrize("make", BATCHES)
@pytest.mark.parametrize("replicas", SIZES)
def test_every_real_value_is_fed_to_one_replica_in_its_place(make, replicas):
    """What is not fed lies beyond the end of its row."""
    spec, inputs, state = make()
    feeds = split_feeds(spec, inputs, state, replicas)
    whole = dict(inputs.batch) | state | {f"mask/{n}": a for n, a in inputs.masks.items()}
    assert len(feeds) == replicas
    row = 0
    for feed, size in zip(feeds, SIZES[replicas], strict=True):
        assert set(feed) == {*whole, "scale"}
        for place in range(size):
            for name, array in whole.items():
                fed, expected = feed[name][place], array[row]
                if expected.ndim and name not in state:
                    real = real_steps(name, row, inputs)
                    assert len(fed) >= real
                    fed, expected = fed[:real], expected[:real]
                np.testing.assert_array_equal(fed, expected, err_msg=name)
            row += 1
    assert row == 5


@pytest.mark.parametrize("loss_per", ["token", "row"])
@pytest.mark.parametrize("make", BATCHES)
@pytest.mark.parametrize("replicas", SIZES)
def test_the_shares_of_the_loss_add_up_to_the_mean(make, replicas, loss_per):
    """If a token of row r costs r + 1, the loss is their sum over the tokens, or the rows."""
    spec, inputs, state = make(loss_per)
    inputs = StepInputs(inputs.batch, inputs.carry, inputs.masks, loss_per=loss_per)
    lengths = LENGTHS if make is stream else PAIR_LENGTHS
    feeds = split_feeds(spec, inputs, state, replicas)
    row, loss = 0, 0.0
    for feed, size in zip(feeds, SIZES[replicas], strict=True):
        costs = [(row + k + 1) * lengths[row + k] for k in range(size)]
        loss += float(feed["scale"][0]) * sum(costs)
        if not sum(costs):
            assert feed["scale"][0] == 0  # it adds nothing, whatever it computes on padding
        row += size
    total = sum((row + 1) * length for row, length in enumerate(lengths))
    assert loss == pytest.approx(total / (sum(lengths) if loss_per == "token" else 5), 1e-14)


def shares_of(whole, axes, inputs, replicas, garbage):
    """Return an activation as replicas compute it: time first, beyond each length garbage."""
    parts, row = [], 0
    time_first = axes[1] in ("time", "source_time")
    for size in SIZES[replicas]:
        part = whole[row : row + size].copy()
        for axis, name in (("time", "lengths"), ("source_time", "source_lengths")):
            if axis in axes:
                longest = max(1, *inputs.batch[name][row : row + size], 0)
                place = axes.index(axis)
                part = np.take(part, range(longest), axis=place)
                for k in range(size):
                    beyond = [k] + [slice(None)] * (part.ndim - 1)
                    beyond[place] = slice(int(inputs.batch[name][row + k]), None)
                    part[tuple(beyond)] = garbage
        parts.append(part.swapaxes(0, 1) if time_first else part)
        row += size
    return parts


ACTIVATIONS = {
    stream: {
        "embedded": ("batch", "time", UNITS),
        "lstm_1/hidden": ("batch", "time", UNITS),
        "h": ("batch", LAYERS, UNITS),
    },
    pairs: {
        "encoder/embedded": ("batch", "source_time", UNITS),
        "encoder/c": ("batch", LAYERS, UNITS),
        "decoder/lstm_1/hidden": ("batch", "time", UNITS),
        "attention/weights": ("batch", "time", "source_time"),
        "attention/output": ("batch", "time", UNITS),
    },
}
AXES = {"batch": 5, "time": TIME, "source_time": SOURCE_TIME}


def is_real(position, axes, inputs):
    """Return whether an element lies within its row on every axis of time."""
    row = position[0]
    limits = {"time": "lengths", "source_time": "source_lengths"}
    return all(
        place < inputs.batch[limits[axis]][row]
        for place, axis in zip(position, axes, strict=True)
        if axis in limits
    )


@pytest.mark.parametrize("make", BATCHES)
@pytest.mark.parametrize("replicas", SIZES)
def test_joining_keeps_every_real_value_and_zeroes_the_padding_alone(make, replicas):
    """So no value that a network computes for a real token is hidden from the comparison."""
    spec, inputs, _ = make()
    for name, axes in ACTIVATIONS[make].items():
        whole = numbers(*(AXES.get(axis, axis) for axis in axes))
        parts = shares_of(whole, axes, inputs, replicas, garbage=np.nan)
        joined = join_activations(spec, {name: parts}, inputs)[f"forward/{name}"]
        assert joined.shape == whole.shape
        for position in np.ndindex(whole.shape):
            expected = whole[position] if is_real(position, axes, inputs) else 0
            assert joined[position] == expected, (name, position)


@pytest.mark.parametrize("make", BATCHES)
@pytest.mark.parametrize("replicas", SIZES)
def test_joining_puts_the_loss_of_each_real_token_in_its_place(make, replicas):
    """Replicas return one row per real token, time varying slowest."""
    spec, inputs, _ = make()
    lengths = inputs.batch["lengths"].tolist()
    whole = numbers(5, TIME)
    parts, row = [], 0
    for size in SIZES[replicas]:
        rows = range(row, row + size)
        parts.append(
            np.array([whole[r, t] for t in range(TIME) for r in rows if t < lengths[r]])
        )
        row += size
    joined = join_activations(spec, {"token_loss": parts}, inputs)["forward/token_loss"]
    for r, t in np.ndindex(whole.shape):
        assert joined[r, t] == (whole[r, t] if t < lengths[r] else 0)
