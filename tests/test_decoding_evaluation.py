"""BLEU as sacrebleu itself gives it, exact answers, and batches that decide nothing."""

from functools import partial

import numpy as np
from oracle_side import small_pairs_spec

from parity.twins.decoding import evaluation
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import bleu, find_answers
from parity.twins.oracle.decode import OracleModel
from parity.twins.spec.initial import initial_snapshot


def test_tokenised_text_is_scored_without_a_warning(caplog):
    """sacrebleu warns of a hundred lines that end in ' .', as tokenised text does."""
    lines = ["a b c d ."] * 120
    bleu(lines, lines, "spaces")
    assert not caplog.records
    bleu(lines, lines, "english")
    assert caplog.records, "where it is no mistake of the reader's, the warning comes"


class Questions:
    """Questions as a training's text has them."""

    def __init__(self, count, size):
        draw = np.random.default_rng(5)
        self.lengths = draw.integers(1, 6, count)
        self.asked = draw.integers(4, size, (count, 5))

    def num_sources(self, split):
        assert split == "test"
        return len(self.lengths)

    def sources(self, split, rows):
        lengths = self.lengths[rows.start : rows.stop]
        source = self.asked[rows.start : rows.stop, : lengths.max()].copy()
        source[np.arange(source.shape[1]) >= lengths[:, None]] = 0
        return source, lengths

    def write(self, tokens):
        return " ".join(map(str, tokens))


def test_batches_of_questions_decide_nothing(monkeypatch):
    spec = small_pairs_spec(initial_scale=5.0, hidden_size=16, target_vocabulary_size=20)
    weights = {
        name.split("/", 1)[1]: array
        for name, array in initial_snapshot(spec).items()
        if name.startswith("weight/")
    }
    model, text = OracleModel(spec.model, weights), Questions(11, 7)
    one_by_one = [
        text.write(
            beam_search(model, *text.sources("test", range(i, i + 1)), 3, 0.6, 4)[0].best.tokens
        )
        for i in range(11)
    ]
    assert len(set(one_by_one)) > 3
    for at_once in (1, 4, 11, 64):
        monkeypatch.setattr(evaluation, "_SENTENCES_PER_BATCH", at_once)
        checked = []
        found = find_answers(
            partial(beam_search, model, beam=3, length_penalty=0.6, max_tokens=4),
            text,
            "test",
            range(11),
            lambda each=checked: each.append(1),
        )
        assert [text.write(each.tokens) for each in found] == one_by_one
        assert len(checked) == -(-11 // at_once)
