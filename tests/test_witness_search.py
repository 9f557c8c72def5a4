"""The searches against numbers worked by hand and against every possible answer.

The sides and the oracle decode with the same searches, and differ only in the network that
they ask. Here a table stands in for the network: the probabilities of the next token, given the
last one and the time.
"""

import math

import numpy as np
import pytest

from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.hypotheses import length_penalty_of
from parity.twins.decoding.token_by_token import greedy_search

PAD, GO, EOS, UNKNOWN, A, B = range(6)
ALL = 1000  # as a beam: more than there are answers


class Table:
    """A model that knows the last token and the time, with tables for each sentence.

    Args:
      probabilities: [sentences, time, last token, next token].
    """

    def __init__(self, probabilities):
        self.log_probs = np.log(probabilities)

    def start(self, source, source_lengths):
        return {"sentence": source[:, 0], "time": np.zeros_like(source[:, 0])}

    def step(self, tokens, state):
        found = self.log_probs[state["sentence"], state["time"], tokens]
        return found, {"sentence": state["sentence"], "time": state["time"] + 1}

    @property
    def sources(self):
        count = len(self.log_probs)
        return np.arange(count)[:, None], np.ones(count, np.int64)


def table(rows):
    """Return one sentence's table, the same at all times: {last: {next: probability}}."""
    probabilities = np.full((1, 9, 6, 6), 1e-300)
    probabilities[..., [PAD, GO]] = 1.0  # they tempt most, and must never be written
    for last, row in rows.items():
        for token, probability in row.items():
            probabilities[0, :, last, token] = probability
    return Table(probabilities)


def told(hypotheses):
    return [(each.tokens, each.finished) for each in hypotheses.ranked]


@pytest.mark.parametrize(
    ("length", "alpha", "penalty"),
    [
        (1, 0.6, 1.0),  # (5 + 1)^a / (5 + 1)^a
        (7, 0.6, 1.5157165665),  # 2^0.6
        (7, 1.0, 2.0),
        (4, 1.0, 1.5),
        (19, 0.5, 2.0),  # 4^0.5
        (13, 2.0, 9.0),  # 3^2
        (20, 0.2, 1.3303249971),  # (25/6)^0.2
        (31, 0.0, 1.0),
    ],
)
def test_the_length_penalty_is_equation_14(length, alpha, penalty):
    """Wu et al. 2016: lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha."""
    assert length_penalty_of(length, alpha) == pytest.approx(penalty, rel=1e-7)


def test_scores_by_hand():
    """`<eos>` counts as a token; an answer that is cut off has as many as were allowed.

    P(<eos>) = 0.5, P(a) = 0.4, P(b) = 0.1 at every step, at most 2 tokens, alpha 1:
      <eos>    ln 0.5  / 1      = -0.69315
      a <eos>  ln 0.2  / (7/6)  = -1.37952
      a a      ln 0.16 / (7/6)  = -1.57078
    """
    row = {EOS: 0.5, A: 0.4, B: 0.1}
    model = table(dict.fromkeys((GO, A, B), row))
    (found,) = beam_search(model, *model.sources, beam=3, length_penalty=1.0, max_tokens=2)
    assert told(found) == [((), True), ((A,), True), ((A, A), False)]
    scores = [each.score for each in found.ranked]
    assert scores == pytest.approx([-0.69315, -1.37952, -1.57078], abs=5e-6)
    log_probs = [each.log_prob for each in found.ranked]
    assert log_probs == pytest.approx([math.log(p) for p in (0.5, 0.2, 0.16)], rel=1e-14)


def test_ties_go_to_the_lower_id():
    model = table({GO: {A: 0.5, B: 0.5}, A: {EOS: 0.5, B: 0.25}, B: {EOS: 0.5, A: 0.25}})
    (found,) = beam_search(model, *model.sources, beam=1, length_penalty=0.0, max_tokens=2)
    (greedy,) = greedy_search(model, *model.sources, max_tokens=2)
    assert found.best.tokens == greedy.best.tokens == (A,)


def random_table(sentences=3, words=3, seed=0):
    draw = np.random.default_rng(seed)
    logits = draw.normal(scale=1.5, size=(sentences, 8, EOS + 1 + words, EOS + 1 + words))
    probabilities = np.exp(logits)
    return Table(probabilities / probabilities.sum(axis=-1, keepdims=True))


def slow_beam(log_probs, beam, alpha, longest):
    """Search as the definition says, without ever stopping early; `ALL` tries every answer."""
    live, pool = [(0.0, ())], []
    for length in range(1, longest + 1):
        penalty, longer = ((5 + length) / 6) ** alpha, []
        for total, tokens in live:
            row = log_probs[length - 1, tokens[-1] if tokens else GO].tolist()
            pool.append(((total + row[EOS]) / penalty, tokens, True))
            longer += [(total + row[t], (*tokens, t)) for t in range(EOS + 1, len(row))]
        live = sorted(longer, key=lambda each: -each[0])[:beam]
    pool += [(total / penalty, tokens, False) for total, tokens in live]
    return sorted(pool, key=lambda each: -each[0])[:beam]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0])
def test_a_wide_beam_finds_the_best_of_all_answers(alpha):
    """Of 3 words and at most 4 tokens: 40 that end, and 81 that are cut off."""
    model = random_table()
    found = beam_search(model, *model.sources, beam=100, length_penalty=alpha, max_tokens=4)
    for sentence, hypotheses in enumerate(found):
        expected = slow_beam(model.log_probs[sentence], ALL, alpha, 4)[:100]
        assert [(h.tokens, h.finished) for h in hypotheses.ranked] == [e[1:] for e in expected]
        scores = [h.score for h in hypotheses.ranked]
        assert scores == pytest.approx([each[0] for each in expected], rel=1e-13)


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_a_narrow_beam_keeps_the_most_probable_prefixes(beam, alpha):
    """60 sentences at once, which are done after different numbers of steps."""
    model = random_table(sentences=60, words=5, seed=beam)
    found = beam_search(model, *model.sources, beam, alpha, max_tokens=8)
    lengths = set()
    for sentence, hypotheses in enumerate(found):
        expected = slow_beam(model.log_probs[sentence], beam, alpha, 8)
        assert [(h.tokens, h.finished) for h in hypotheses.ranked] == [e[1:] for e in expected]
        scores = [h.score for h in hypotheses.ranked]
        assert scores == pytest.approx([each[0] for each in expected], rel=1e-13)
        lengths.add(len(hypotheses.best.tokens))
    assert len(lengths) > 2


def test_greedy_search_follows_the_most_probable_token():
    model = random_table(sentences=60, words=5, seed=9)
    ended = 0
    for sentence, hypotheses in enumerate(greedy_search(model, *model.sources, max_tokens=6)):
        last, tokens, total = GO, [], 0.0
        for time in range(6):
            row = model.log_probs[sentence, time, last].tolist()
            last = max(range(EOS, len(row)), key=row.__getitem__)
            total += row[last]
            if last == EOS:
                break
            tokens.append(last)
        assert told(hypotheses) == [(tuple(tokens), last == EOS)]
        assert hypotheses.best.log_prob == pytest.approx(total, rel=1e-13)
        ended += last == EOS
    assert 5 < ended < 55
