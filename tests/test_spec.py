"""Specs: ranges, presets, the schedule, and their stored form."""

import dataclasses
import json
import math

import numpy as np
import pytest
from oracle_side import small_spec

from parity.base.errors import UsageError
from parity.base.fields import check_fields, option
from parity.twins.cli.options import RunOptions, TrainOptions
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, TrainSpec, preset

ALL_PRESETS = [(network, name) for network in NETWORKS for name in NETWORKS[network].presets]


@pytest.mark.parametrize(("network", "name"), ALL_PRESETS)
def test_presets_survive_being_stored(network, name):
    spec = preset(network, name)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


TRAINING_VALUES = {
    "batch_size": 15,
    "optimizer": "adam",
    "learning_rate": 1 / 7,
    "decay": 1 / 1.15,
    "decay_after": 17,
    "beta1": 0.8,
    "beta2": 0.99,
    "epsilon": 1e-7,
    "loss_per": "row",
    "clip_norm": 0.3,
    "epochs": 18,
    "seed": 19,
    "dtype": "float64",
}
# network -> a value for each field of its model and its text, none of them a default
VALUES = {
    "language-model": {
        "vocabulary_size": 11,
        "embedding_size": 12,
        "hidden_size": 13,
        "num_layers": 14,
        "keep": 0.1,
        "initial_scale": 1 / 3,
        "batching": "sentences",
        "time": 16,
        "train_lines": 21,
    },
    "seq2seq": {
        "source_vocabulary_size": 10,
        "target_vocabulary_size": 11,
        "embedding_size": 12,
        "hidden_size": 14,
        "num_layers": 3,
        "cell": "gru",
        "attention": "scaled",
        "input_feeding": True,
        "bidirectional": True,
        "keep": 0.1,
        "initial_scale": 1 / 3,
        "source_segmenter": "english",
        "target_segmenter": "spaces",
        "hmm": False,
        "share_vocabulary": True,
        "source_limit": 8,
        "target_limit": 9,
        "split_by": "block",
        "train_lines": 21,
    },
}


@pytest.mark.parametrize("network", NETWORKS)
def test_every_field_survives_being_stored(network):
    values = VALUES[network] | TRAINING_VALUES
    of = {
        f.name: f
        for cls in (NETWORKS[network].model, NETWORKS[network].text, TrainSpec)
        for f in dataclasses.fields(cls)
    }
    assert of.keys() == values.keys()
    assert all(values[name] != field.default for name, field in of.items())
    spec = preset(network, "tiny").replace(**values)
    back = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert back == spec
    assert isinstance(back.model, NETWORKS[network].model)
    assert isinstance(back.text, NETWORKS[network].text)
    assert back.values() == values


@pytest.mark.parametrize("network", NETWORKS)
def test_a_spec_that_was_stored_before_train_lines_reads_the_whole_text(network):
    spec = preset(network, "tiny")
    values = spec.to_json()
    del values["text"]["train_lines"]
    assert Spec.from_json(values) == spec
    assert spec.text.train_lines == 0


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda values: values.pop("network"), "network"),
        (lambda values: values.update(network="seq2seq"), "vocabulary_size"),
        (lambda values: values.update(network="seq"), "seq"),
        (lambda values: values["model"].pop("keep"), None),
        (lambda values: values["model"].update(gates=3), "gates"),
        (lambda values: values.update(training=None), "mapping"),
        (lambda values: values["text"].update(time="long"), "--time"),
        (lambda values: values.pop("text"), "text"),
        (lambda values: values["training"].update(time=4), "time"),
    ],
)
def test_a_stored_spec_that_does_not_fit(spoil, named):
    values = small_spec().to_json()
    spoil(values)
    if named is None:  # a field left out has its default: older files stay readable
        assert Spec.from_json(values).model.keep == 1.0
        return
    with pytest.raises(UsageError, match=named) as caught:
        Spec.from_json(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("vocabulary_size", 2, ">= 3"),
        ("embedding_size", 0, ">= 1"),
        ("hidden_size", -1, ">= 1"),
        ("num_layers", 0, ">= 1 and <= 1000"),
        ("keep", 0.0, "> 0 and <= 1"),
        ("keep", 1.01, "> 0 and <= 1"),
        ("keep", math.nan, "a finite number"),
        ("initial_scale", 0.0, "> 0"),
        ("initial_scale", math.inf, "a finite number"),
        ("batching", "rows", "stream, sentences"),
        ("batch_size", 0, ">= 1"),
        ("time", 0, ">= 1"),
        ("optimizer", "momentum", "sgd, adam"),
        ("learning_rate", 0.0, "> 0"),
        ("learning_rate", -0.1, "> 0"),
        ("learning_rate", math.nan, "a finite number"),
        ("decay", 1.5, "> 0 and <= 1"),
        ("decay_after", 0, ">= 1"),
        ("beta1", 1.0, ">= 0 and < 1"),
        ("beta2", -0.1, ">= 0 and < 1"),
        ("epsilon", 0.0, "> 0"),
        ("clip_norm", 0.0, "> 0"),
        ("clip_norm", -5.0, "> 0"),
        ("epochs", 0, ">= 1"),
        ("seed", -1, ">= 0"),
        ("dtype", "float16", "float32, float64"),
        ("hidden_size", "wide", "a finite number"),
        ("hidden_size", True, "a finite number"),
    ],
)
def test_values_out_of_range_are_named(field, value, allowed):
    with pytest.raises(UsageError) as caught:
        small_spec(**{field: value})
    flag = "--" + field.replace("_", "-")
    assert str(caught.value) == f"{flag} is {value!r}; allowed: {allowed}"
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("source_vocabulary_size", 4, ">= 5"),
        ("target_vocabulary_size", 4, ">= 5"),
        ("embedding_size", 0, ">= 1"),
        ("hidden_size", 0, ">= 1"),
        ("num_layers", 0, ">= 1 and <= 1000"),
        ("cell", "rnn", "lstm, gru"),
        ("attention", "luong", "dot, general, scaled, bahdanau"),
        ("keep", 0.0, "> 0 and <= 1"),
        ("initial_scale", 0.0, "> 0"),
        ("source_segmenter", "words", "chinese, english, spaces"),
        ("target_segmenter", "words", "chinese, english, spaces"),
        ("source_limit", 0, ">= 1"),
        ("target_limit", 0, ">= 1"),
        ("split_by", "line", "source, block"),
    ],
)
def test_values_out_of_range_of_seq2seq_are_named(field, value, allowed):
    with pytest.raises(UsageError) as caught:
        preset("seq2seq", "tiny").replace(**{field: value})
    flag = "--" + field.replace("_", "-")
    assert str(caught.value) == f"{flag} is {value!r}; allowed: {allowed}"
    assert caught.value.exit_status == 2


def test_two_directions_need_an_even_number_of_units():
    spec = preset("seq2seq", "tiny").replace(hidden_size=7, bidirectional=False)
    with pytest.raises(UsageError) as caught:
        spec.replace(bidirectional=True)
    said = "--hidden-size is 7; allowed with --bidirectional: an even number"
    assert str(caught.value) == said
    spec.replace(bidirectional=True, hidden_size=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainOptions(replicas=0), "--replicas is 0; allowed: >= 1 and <= 65536"),
        (lambda: TrainOptions(device="tpu"), "--device is 'tpu'; allowed: cpu, gpu"),
        (lambda: TrainOptions(steps=0), "--steps is 0; allowed: >= 1"),
        (lambda: RunOptions(replicas=(1, 0)), "--replicas is 0; allowed: >= 1 and <= 65536"),
        (lambda: RunOptions(dtype=("half",)), "--dtype is 'half'; allowed: float64, float32"),
        (
            lambda: RunOptions(replicas=(2, 1, 2)),
            "--replicas is 2,1,2; allowed: each value once",
        ),
    ],
)
def test_options_out_of_range_are_named(make, message):
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == message


def test_options_that_are_not_given_are_not_checked():
    assert TrainOptions().steps is None
    assert TrainOptions(steps=1, checkpoint_every=1).checkpoint_every == 1


def test_bounds_hold_at_their_edges():
    @dataclasses.dataclass
    class Edges:
        above: float = option(0, "", above=0)
        at_least: float = option(0, "", at_least=0)
        at_most: float = option(0, "", at_most=0)
        below: float = option(0, "", below=0)

    tiny = math.ulp(0.0)
    check_fields(Edges(tiny, 0, 0, -tiny))
    for wrong in ((0, 0, 0, -1), (1, -tiny, 0, -1), (1, 0, tiny, -1), (1, 0, 0, 0)):
        with pytest.raises(UsageError):
            check_fields(Edges(*wrong))


def test_replace_knows_its_fields():
    spec = small_spec()
    assert spec.replace() == spec
    assert spec.replace(time=9).text.time == 9
    assert spec.replace(time=9).model is not None
    assert spec.text.time == 4
    both = spec.replace(keep=0.5, time=9, epochs=3)
    assert (both.model.keep, both.text.time, both.training.epochs) == (0.5, 9, 3)
    with pytest.raises(UsageError, match=r"no field 'replicas'.*hidden_size.*time"):
        spec.replace(replicas=2)
    with pytest.raises(UsageError, match=r"no field 'cell' in a language-model spec; "):
        spec.replace(cell="gru")
    with pytest.raises(UsageError, match=r"no field 'time' in a seq2seq spec; .*split_by"):
        preset("seq2seq", "tiny").replace(time=9)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(
        UsageError, match=r"^--network is 'seq'; allowed: language-model, seq2seq$"
    ):
        preset("seq", "tiny")
    with pytest.raises(
        UsageError, match=r"--preset is 'huge'; allowed: tiny, proof, tf2fluid, .*zaremba-l"
    ):
        preset("language-model", "huge")
    with pytest.raises(UsageError, match="--preset is 'zaremba-small'; allowed: tiny, tiny-"):
        preset("seq2seq", "zaremba-small")


def test_presets_are_the_published_ones():
    """Zaremba et al. 2014, section 4.1, and its code: sizes, dropout, schedule."""
    published = {
        "zaremba-small": (200, 20, 1.0, 0.1, 5, 0.5, 4, 13),
        "zaremba-medium": (650, 35, 0.5, 0.05, 5, 0.8, 6, 39),
        "zaremba-large": (1500, 35, 0.35, 0.04, 10, 1 / 1.15, 14, 55),
    }
    for name, numbers in published.items():
        spec = preset("language-model", name)
        model, training = spec.model, spec.training
        assert (
            model.hidden_size,
            spec.text.time,
            model.keep,
            model.initial_scale,
            training.clip_norm,
            training.decay,
            training.decay_after,
            training.epochs,
        ) == numbers
        assert model.embedding_size == model.hidden_size
        assert (training.batch_size, model.num_layers, training.optimizer) == (20, 2, "sgd")
        assert (spec.text.batching, training.learning_rate) == ("stream", 1.0)
    spec = preset("language-model", "tf2fluid")
    model, training = spec.model, spec.training
    assert (spec.text.batching, training.batch_size) == ("sentences", 60)
    assert (model.embedding_size, model.hidden_size, model.num_layers) == (64, 128, 2)
    assert (training.optimizer, training.learning_rate) == ("adam", 1e-3)


def test_presets_of_seq2seq_are_of_the_papers_they_name():
    presets = {name: spec.model for name, spec in NETWORKS["seq2seq"].presets.items()}
    assert list(presets) == [
        "tiny",
        "tiny-nmt",
        "proof",
        "chatbot",
        "nmt-bahdanau",
        "gnmt-small",
    ]
    for name in ("tiny-nmt", "nmt-bahdanau"):  # Bahdanau et al. 2015, A.1: GRU, context fed
        model = presets[name]
        assert (model.cell, model.attention, model.input_feeding) == ("gru", "bahdanau", True)
    gnmt = presets[
        "gnmt-small"
    ]  # Wu et al. 2016, 3.2: only the bottom layer in both directions
    assert (gnmt.cell, gnmt.bidirectional, gnmt.input_feeding) == ("lstm", True, True)
    assert gnmt.num_layers > 1
    assert (
        NETWORKS["seq2seq"].presets["chatbot"].text.split_by == "block"
    )  # turns of one dialogue


def test_specs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small_spec().model.keep = 0.5


def test_numbers_of_numpy_are_numbers():
    assert small_spec(vocabulary_size=int(np.int64(9))).model.vocabulary_size == 9
