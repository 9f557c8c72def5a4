"""Specs: ranges, presets, the schedule, and their stored form."""

import dataclasses
import json
import math

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec
from test_cli import other

from parity.base.errors import UsageError
from parity.twins.spec.fields import check_fields, option
from parity.twins.spec.gpus import check_gpus, without_paddle
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec, TrainSpec, preset
from parity.twins.spec.stages import layers_of, stages_of


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


def test_a_spec_that_was_stored_before_train_lines_reads_the_whole_text():
    spec = preset("seq2seq", "tiny")
    values = spec.to_json()
    del values["text"]["train_lines"]
    assert Spec.from_json(values) == spec.replace(train_lines=0)


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
    """Zaremba et al. 2014, section 4.1, and its code: sizes and dropout.

    The schedule is that of test_witness_schedule.py.
    """
    published = {
        "zaremba-small": (200, 20, 1.0, 0.1, 5),
        "zaremba-medium": (650, 35, 0.5, 0.05, 5),
        "zaremba-large": (1500, 35, 0.35, 0.04, 10),
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
        ) == numbers
        assert model.embedding_size == model.hidden_size
        assert (training.batch_size, model.num_layers, training.optimizer) == (20, 2, "sgd")
        assert spec.text.batching == "stream"
    spec = preset("language-model", "tf2fluid")
    model, training = spec.model, spec.training
    assert (spec.text.batching, training.batch_size) == ("sentences", 60)
    assert (model.embedding_size, model.hidden_size, model.num_layers) == (64, 128, 2)
    assert training.optimizer == "adam"


# how many replicas there may be


def test_too_few_rows_are_refused():
    with pytest.raises(
        UsageError, match=r"batch of 3 rows.*4 replicas; allowed: --replicas <= 3"
    ):
        split_rows(3, 4)
    with pytest.raises(UsageError, match="--replicas is 0; allowed: >= 1"):
        split_rows(3, 0)


@pytest.mark.parametrize(
    ("replicas", "stages", "found", "said"),
    [
        (1, 1, 0, "no GPU is found; allowed: cpu"),
        (
            3,
            1,
            2,
            r"--replicas is 3, but the machine has 2 GPUs \(gpu:0, gpu:1\); allowed: 1 to 2",
        ),
        (2, 2, 3, "at --stages 2, but the machine has 3 GPUs .* allowed: 1, or"),
        (2, 1, 1, r"has 1 GPU \(gpu:0\); allowed: 1, or --device cpu"),
        (1, 3, 2, "allowed: fewer stages, or --device cpu"),
    ],
)
def test_too_few_gpus_are_refused(replicas, stages, found, said):
    check_gpus(replicas, stages, replicas * stages)
    with pytest.raises(UsageError, match=said):
        check_gpus(replicas, stages, found)


@pytest.mark.parametrize("capability", [(6, 1), (7, 5), (8, 0), (8, 9)])
def test_paddle_runs_where_it_has_code_for_the_gpu(capability):
    assert without_paddle(capability) == ""


@pytest.mark.parametrize("capability", [(6, 0), (9, 0), (10, 0)])
def test_paddle_has_no_code_for_other_gpus(capability):
    major, minor = capability
    assert f"compute capability {major}.{minor}, which" in without_paddle(capability)


# how the layers of a network are divided among stages, and rows among micro-batches


DEEP = small_spec(num_layers=3)
BOTH_WAYS = small_pairs_spec(num_layers=2, bidirectional=True, attention="bahdanau")
FED = small_pairs_spec(num_layers=2, attention="bahdanau", input_feeding=True)


@pytest.mark.parametrize("spec", [DEEP, BOTH_WAYS, FED], ids=["deep", "both ways", "fed"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_stages_hold_every_layer_once_in_order(spec, stages):
    divided = stages_of(spec, stages)
    assert len(divided) == stages
    assert all(divided)
    assert [layer for stage in divided for layer in stage] == list(layers_of(spec))


def test_the_slowest_stage_is_as_fast_as_can_be():
    """Tables are looked up, and cost nothing; the projection to 4,000 words costs most."""
    wide = DEEP.replace(embedding_size=40, hidden_size=40, vocabulary_size=4000)
    assert stages_of(wide, 2) == [["embed", "lstm_0", "lstm_1", "lstm_2"], ["softmax"]]
    deep = wide.replace(vocabulary_size=10)
    assert stages_of(deep, 3) == [["embed", "lstm_0"], ["lstm_1"], ["lstm_2", "softmax"]]


def test_products_within_a_loop_over_time_count_more():
    """By multiplications alone, the projection would be a stage of its own."""
    spec = preset("language-model", "four-layers")
    first, second = stages_of(spec, 2)
    assert first == ["embed", "lstm_0", "lstm_1", "lstm_2"]
    assert second == ["lstm_3", "softmax"]


def test_a_decoder_that_is_fed_its_attention_is_never_cut():
    together = {"decoder/lstm_0", "decoder/lstm_1", "attention"}
    for stages in range(1, 7):
        assert any(together <= set(stage) for stage in stages_of(FED, stages))
    apart = stages_of(BOTH_WAYS, 8)
    assert not any(together <= set(stage) for stage in apart)


def test_more_stages_than_layers_are_refused_in_one_line():
    with pytest.raises(UsageError) as refused:
        stages_of(DEEP, 9)
    assert str(refused.value) == "--stages is 9; allowed: 1 to 5, the layers of this network"


def test_micro_batches_share_the_rows_of_their_replica():
    assert split_rows(10, 2, 4) == [2, 1, 1, 1, 2, 1, 1, 1]
    assert split_rows(20, 3) == [7, 7, 6], "the first replicas have more"
    assert split_rows(7, 2, 2) == [2, 2, 2, 1]
    assert split_rows(3, 2, 4) == [1, 1, 0, 0, 1, 0, 0, 0]
    for rows in range(3, 20):
        for micro_batches in range(1, 6):
            sizes = split_rows(rows, 3, micro_batches)
            of_replicas = np.reshape(sizes, [3, micro_batches]).sum(axis=1)
            assert of_replicas.tolist() == split_rows(rows, 3)
