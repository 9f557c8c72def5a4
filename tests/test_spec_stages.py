"""How the layers of a network are divided among stages, and rows among micro-batches."""

import numpy as np
import pytest
from oracle_side import small_pairs_spec, small_spec

from parity.base.errors import UsageError
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import preset
from parity.twins.spec.stages import layers_of, stages_of

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
    with pytest.raises(UsageError, match="--stages is 7; allowed: 1 to 6, "):
        stages_of(FED, 7)


def test_micro_batches_share_the_rows_of_their_replica():
    assert split_rows(10, 2, 4) == [2, 1, 1, 1, 2, 1, 1, 1]
    assert split_rows(7, 2, 2) == [2, 2, 2, 1]
    assert split_rows(3, 2, 4) == [1, 1, 0, 0, 1, 0, 0, 0]
    for rows in range(3, 20):
        for micro_batches in range(1, 6):
            sizes = split_rows(rows, 3, micro_batches)
            of_replicas = np.reshape(sizes, [3, micro_batches]).sum(axis=1)
            assert of_replicas.tolist() == split_rows(rows, 3)
