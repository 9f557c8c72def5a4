"""Specs: ranges, presets, the schedule, and their stored form."""

import dataclasses
import json
import math

import pytest
from oracle_side import small_spec
from test_cli import other

from parity.base.errors import UsageError
from parity.base.fields import check_fields, option
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, TrainSpec, preset


@pytest.mark.parametrize("network", NETWORKS)
def test_every_field_survives_being_stored(network):
    values = {
        field.name: other(field)
        for cls in (NETWORKS[network].model, NETWORKS[network].text, TrainSpec)
        for field in dataclasses.fields(cls)
    }
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
