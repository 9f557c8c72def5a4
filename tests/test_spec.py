"""Specs: ranges, presets, the schedule, and their stored form."""

import dataclasses
import json
import math

import numpy as np
import pytest
from oracle_side import small_spec

from parity.errors import UsageError
from parity.fields import check_fields, option
from parity.options import RunOptions, TrainOptions
from parity.spec import PRESETS, ModelSpec, Spec, TrainSpec, learning_rate, preset

ALL_PRESETS = [(network, name) for network in PRESETS for name in PRESETS[network]]


@pytest.mark.parametrize(("network", "name"), ALL_PRESETS)
def test_presets_survive_being_stored(network, name):
    spec = preset(network, name)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_every_field_survives_being_stored():
    values = {
        "vocabulary_size": 11,
        "embedding_size": 12,
        "hidden_size": 13,
        "num_layers": 14,
        "keep": 0.1,
        "initial_scale": 1 / 3,
        "batching": "sentences",
        "batch_size": 15,
        "time": 16,
        "optimizer": "adam",
        "learning_rate": 1 / 7,
        "decay": 1 / 1.15,
        "decay_after": 17,
        "beta1": 0.8,
        "beta2": 0.99,
        "epsilon": 1e-7,
        "clip_norm": 0.3,
        "epochs": 18,
        "seed": 19,
        "dtype": "float64",
    }
    fields = {f.name for cls in (ModelSpec, TrainSpec) for f in dataclasses.fields(cls)}
    assert fields == set(values)
    spec = preset("language-model", "tiny").replace(**values)
    back = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert back == spec
    assert dataclasses.asdict(back.model) | dataclasses.asdict(back.training) == values


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda values: values.pop("network"), "network"),
        (lambda values: values["model"].pop("keep"), None),
        (lambda values: values["model"].update(gates=3), "gates"),
        (lambda values: values.update(training=None), "mapping"),
        (lambda values: values["training"].update(time="long"), "--time"),
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
        ("num_layers", 0, ">= 1"),
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
    ("make", "message"),
    [
        (lambda: TrainOptions(replicas=0), "--replicas is 0; allowed: >= 1"),
        (lambda: TrainOptions(device="tpu"), "--device is 'tpu'; allowed: cpu, gpu"),
        (lambda: TrainOptions(steps=0), "--steps is 0; allowed: >= 1"),
        (lambda: RunOptions(replicas=(1, 0)), "--replicas is 0; allowed: >= 1"),
        (lambda: RunOptions(dtype=("half",)), "--dtype is 'half'; allowed: float64, float32"),
        (
            lambda: RunOptions(replicas=(2, 1, 2)),
            "--replicas is (2, 1, 2); allowed: each value once",
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
    assert spec.replace(time=9).training.time == 9
    assert spec.replace(time=9).model is not None
    assert spec.training.time == 4
    with pytest.raises(UsageError, match=r"no field 'replicas'.*hidden_size.*time"):
        spec.replace(replicas=2)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match="--network is 'seq'; allowed: language-model"):
        preset("seq", "tiny")
    with pytest.raises(
        UsageError, match=r"--preset is 'huge'; allowed: tiny, tf2fluid, .*zaremba-l"
    ):
        preset("language-model", "huge")


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
            training.time,
            model.keep,
            model.initial_scale,
            training.clip_norm,
            training.decay,
            training.decay_after,
            training.epochs,
        ) == numbers
        assert model.embedding_size == model.hidden_size
        assert (training.batch_size, model.num_layers, training.optimizer) == (20, 2, "sgd")
        assert (training.batching, training.learning_rate) == ("stream", 1.0)
    model, training = (
        getattr(preset("language-model", "tf2fluid"), p) for p in ("model", "training")
    )
    assert (training.batching, training.batch_size) == ("sentences", 60)
    assert (model.embedding_size, model.hidden_size, model.num_layers) == (64, 128, 2)
    assert (training.optimizer, training.learning_rate) == ("adam", 1e-3)


def test_the_schedule_is_constant_and_then_decays():
    training = TrainSpec(learning_rate=1.0, decay=0.5, decay_after=4)
    rates = [learning_rate(training, epoch) for epoch in range(7)]
    assert rates == [1, 1, 1, 1, 0.5, 0.25, 0.125]


def test_specs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small_spec().model.keep = 0.5


def test_numbers_of_numpy_are_numbers():
    assert small_spec(vocabulary_size=int(np.int64(9))).model.vocabulary_size == 9
