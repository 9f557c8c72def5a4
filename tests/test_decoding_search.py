"""The searches against enumeration, against slow searches, and against their own margins."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import NumericFailure
from parity.base.special_tokens import PAIR_EOS_ID as EOS
from parity.base.special_tokens import PAIR_GO_ID as GO
from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.evaluation import bleu
from parity.twins.decoding.token_by_token import greedy_search, sample
from parity.twins.oracle.decode import OracleModel, rescore
from parity.twins.oracle.seq2seq import forward
from parity.twins.spec.networks.seq2seq import SEQ2SEQ, Seq2seqSpec

CASES = [
    ("lstm", "dot", False, False),
    ("gru", "general", True, True),
    ("lstm", "scaled", True, True),
    ("gru", "bahdanau", True, False),
    ("lstm", "bahdanau", False, False),
]
LENGTHS = np.array([3, 5, 1, 2])


def network(case, words, seed=1, scale=1.5):
    """Return a small network with large weights, and sources of unequal lengths."""
    cell, attention, feeding, bidirectional = case
    model = Seq2seqSpec(
        source_vocabulary_size=9,
        target_vocabulary_size=EOS + 1 + words,
        embedding_size=3,
        hidden_size=4,
        num_layers=2,
        cell=cell,
        attention=attention,
        input_feeding=feeding,
        bidirectional=bidirectional,
    )
    draw = np.random.default_rng(seed)
    weights = {
        each.name: each.mean + draw.uniform(-scale, scale, each.shape)
        for each in SEQ2SEQ.parameters(model)
    }
    source = np.where(np.arange(5) < LENGTHS[:, None], draw.integers(4, 9, (4, 5)), 0)
    return OracleModel(model, weights), source, LENGTHS


@dataclass
class Chain:
    """A model that remembers one token: per sentence a table of log probabilities.

    Attributes:
      tables: [sentences, vocabulary, vocabulary], by sentence and by the token before.
    """

    tables: np.ndarray

    @property
    def source(self):
        """Return sources that hold the number of their sentence, and their lengths."""
        return np.arange(len(self.tables))[:, None], np.ones(len(self.tables), np.int64)

    def start(self, source, source_lengths):
        return {"sentence": source[:, 0]}

    def step(self, tokens, state):
        return self.tables[state["sentence"], tokens], state


def chain(log_probs):
    """Return a chain of one sentence in which every step has the same log probabilities.

    Args:
      log_probs: of `<eos>` and of the words from there on.
    """
    row = np.array([0.0, 0.0, *log_probs])  # padding and <go> tempt most
    return Chain(np.tile(row, (1, len(row), 1)))


@st.composite
def chains(draw):
    """Draw chains; some have many ties, and sums without rounding."""
    sentences, words = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    shape = sentences, EOS + 1 + words, EOS + 1 + words
    if draw(st.booleans()):
        return Chain(-generator.integers(1, 6, shape) / 4)
    logits = generator.normal(size=shape) * draw(st.sampled_from([0.3, 1, 3]))
    return Chain(logits - np.log(np.exp(logits).sum(axis=2, keepdims=True)))


def told(hypotheses):
    """Return the hypotheses without their weights."""
    return [(h.score, h.log_prob, h.tokens, h.finished) for h in hypotheses.ranked]


def same_answers(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert [each[2:] for each in mine] == [each[2:] for each in theirs]
        values = ([each[:2] for each in side] for side in (mine, theirs))
        np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-14)


def map_told(found):
    return [told(each) for each in found]


def test_ties_at_the_edge_of_a_long_vocabulary_go_to_the_lower_id():
    """Of 2000 equal words; they are searched by blocks."""
    model = chain([-9.0, *[-5.0] * 2000])
    (found,) = beam_search(model, *model.source, 4, 0.0, 1)
    assert [h.tokens for h in found.ranked] == [(3,), (4,), (5,), (6,)]
    assert found.margin == 0
    words = np.full(2000, -5.0)
    words[[1700, 50, 1999, 51]] = -1.0, -2.0, -3.0, -4.0
    model = chain([-9.0, *words])
    (found,) = beam_search(model, *model.source, 4, 0.0, 1)
    assert [h.tokens for h in found.ranked] == [(1703,), (53,), (2002,), (54,)]
    assert found.margin == 1


def test_a_search_says_whether_it_ended_early():
    """The first of two sentences nearly always ends at once, the second nearly never."""
    ends, goes_on = np.full((2, 6, 6), -6.0)
    ends[:, EOS], goes_on[:, 3] = -0.01, -0.01
    model = Chain(np.stack([ends, goes_on]))
    first, second = beam_search(model, *model.source, 2, 0.0, 6)
    assert (first.ended_early, second.ended_early) == (True, False)


def test_an_impossible_extension_is_no_hypothesis():
    """Also where the beam is wider than what is possible, or than the vocabulary."""
    model = chain([-1.0, -math.inf, -2.0, -math.inf])
    (found,) = beam_search(model, *model.source, 50, 0.0, 2)
    assert [(h.tokens, h.finished) for h in found.ranked] == [
        ((), True),
        ((4,), True),
        ((4, 4), False),
    ]
    model = chain([-1.0, -math.inf])
    (found,) = beam_search(model, *model.source, 5, 0.0, 9)
    assert [h.tokens for h in found.ranked] == [()]
    assert found.margin == math.inf


@settings(max_examples=60, deadline=None)
@given(
    model=chains(),
    beam=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    most=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
def test_less_than_the_margin_changes_no_answer(model, beam, alpha, most, seed):
    noise = np.random.default_rng(seed).uniform(-1, 1, model.tables.shape)
    for search in (
        lambda model, at: beam_search(model, *(a[at] for a in model.source), beam, alpha, most),
        lambda model, at: greedy_search(model, *(a[at] for a in model.source), most),
    ):
        for row in range(len(model.tables)):
            at = slice(row, row + 1)
            (found,) = search(model, at)
            margin = min(found.margin, 1)
            # two hypotheses of `most` tokens each move apart by no more than this
            moved = Chain(model.tables + noise * margin / (2 * most) * 0.99)
            (other,) = search(moved, at)
            assert [each[2:] for each in told(found)] == [each[2:] for each in told(other)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sentence_alone_has_the_answers_it_has_in_a_batch(case):
    """Padded to its own length, whatever stood beside it."""
    model, *source = network(case, words=9)
    searches = [
        lambda source, lengths, first: beam_search(model, source, lengths, 3, 0.6, 6),
        lambda source, lengths, first: greedy_search(model, source, lengths, 6),
        lambda source, lengths, first: sample(model, source, lengths, 6, 7, 1.5, first),
    ]
    for search in searches:
        for row, together in enumerate(search(*source, 0)):
            length = LENGTHS[row]
            (alone,) = search(source[0][row : row + 1, :length], LENGTHS[row : row + 1], row)
            same_answers([told(alone)], [told(together)])
            assert alone.margin == pytest.approx(together.margin, rel=1e-9)
            for mine, theirs in zip(alone.ranked, together.ranked, strict=True):
                np.testing.assert_allclose(mine.weights, theirs.weights[:, :length], rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_are_scored_and_attend_as_in_training(case):
    model, source, lengths = network(case, words=9)
    searches = [
        beam_search(model, source, lengths, 4, 0.6, 5),
        sample(model, source, lengths, 5, seed=3, temperature=2.0),
    ]
    finished = set()
    for found in searches:
        for rank in range(len(found[0].ranked)):
            answers = [each.ranked[rank] for each in found]
            ends = [answer.finished for answer in answers]
            finished |= set(ends)
            scores = rescore(model, source, lengths, [a.tokens for a in answers], ends)
            np.testing.assert_allclose(scores, [a.log_prob for a in answers], rtol=1e-12)
            for row, answer in enumerate(answers):
                written = [*answer.tokens, EOS] if answer.finished else list(answer.tokens)
                inputs = np.array([[GO, *written][:-1]])
                batch = {
                    "source": source[row : row + 1],
                    "source_lengths": lengths[row : row + 1],
                    "tokens": inputs,
                    "targets": np.array([written]),
                    "lengths": np.array([len(written)]),
                }
                activations, _ = forward(model.model, model.weights, batch, {})
                expected = activations["attention/weights"][0]
                np.testing.assert_allclose(answer.weights, expected, rtol=1e-12)
    assert finished == {True, False}


def test_samples_are_the_same_for_a_seed_and_others_for_another():
    model, *source = network(CASES[1], words=9)
    first, again = (sample(model, *source, 8, seed=4) for _ in range(2))
    assert map_told(first) == map_told(again)
    others = [map_told(sample(model, *source, 8, seed)) for seed in range(5, 9)]
    assert all(other != map_told(first) for other in others)
    # sentences that are equal draw from streams of their own
    same = [np.repeat(array[:1], 20, axis=0) for array in source]
    assert len({each.best.tokens for each in sample(model, *same, 8, seed=4)}) > 10


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_distribution(temperature):
    """First tokens of 4000 sentences; the share of each is within five standard deviations."""
    log_probs = np.log([0.1, 0.4, 0.05, 0.3, 0.15])
    one = chain(log_probs)
    model = Chain(np.repeat(one.tables, 4000, axis=0))
    found = sample(model, *model.source, 1, seed=0, temperature=temperature)
    first = [EOS if each.best.finished else each.best.tokens[0] for each in found]
    weights = np.exp(log_probs / temperature)
    shares = weights / weights.sum()
    counted = np.bincount(first, minlength=EOS + 5)[EOS:]
    spread = np.sqrt(4000 * shares * (1 - shares))
    assert (np.abs(counted - 4000 * shares) < 5 * spread).all()
    for each, token in zip(found, first, strict=True):
        assert each.best.log_prob == log_probs[token - EOS]
        assert each.best.score == each.best.log_prob
    # distances to the nearest edge of cumulated shares
    margins = np.array([each.margin for each in found])
    assert 0 < margins.min() < 1e-3
    assert margins.max() <= shares.max() / 2


def test_float32_log_probs_are_summed_in_float64():
    tables = np.random.default_rng(0).normal(-2, 0.5, (1, 8, 8)).astype(np.float32)
    model, wide = Chain(tables), Chain(tables.astype(np.float64))
    found = beam_search(model, *model.source, 3, 0.6, 6)
    assert map_told(found) == map_told(beam_search(wide, *wide.source, 3, 0.6, 6))


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_log_prob_that_is_no_number_ends_the_search(value):
    tables = np.full((3, 5, 5), -1.0)
    tables[2, 3] = [-1.0, -1.0, value, value, value]
    model = Chain(tables)
    for search in (
        lambda: beam_search(model, *model.source, 2, 0.6, 4),
        lambda: sample(Chain(tables - 9.0 * (np.arange(5) != 3)), *model.source, 4, 0),
    ):
        with pytest.raises(
            NumericFailure, match=r"decoding, step 1, sentence 2: .* is -?(nan|inf)"
        ):
            search()
    tables[2, 3] = -1.0
    tables[2, 3, 4] = math.nan
    with pytest.raises(NumericFailure):
        beam_search(model, *model.source, 2, 0.6, 4)


def test_tokenised_text_is_scored_without_a_warning(caplog):
    """sacrebleu warns of a hundred lines that end in ' .', as tokenised text does."""
    lines = ["a b c d ."] * 120
    bleu(lines, lines, "spaces")
    assert not caplog.records
    bleu(lines, lines, "english")
    assert caplog.records, "where it is no mistake of the reader's, the warning comes"
