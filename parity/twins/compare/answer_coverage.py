"""Counts how searches for answers ended."""

from collections.abc import Iterable

from parity.compare.coverage import Fact
from parity.twins.decoding.hypotheses import Hypotheses

_TIE = 1e-12  # nats; a smaller margin is within the rounding of float64

_MEANINGS = {
    "answer ended by <eos>": "A hypothesis ended by itself.",
    "answer cut off at the limit": "A hypothesis had as many tokens as are allowed.",
    "beam search ended early": "Enough hypotheses had ended; none could become better.",
    "tie between answers": "Two hypotheses had equal scores, so the order of ids decided.",
}


def answer_facts(found: Iterable[Hypotheses] = ()) -> list[Fact]:
    """Return how often searches for answers met each case.

    Args:
      found: what the oracle's search found, for each sentence.
    """
    facts = {name: Fact(name, meaning, unit="searches") for name, meaning in _MEANINGS.items()}
    for each in found:
        ended = [hypothesis.finished for hypothesis in each.ranked]
        met = {
            "answer ended by <eos>": any(ended),
            "answer cut off at the limit": not all(ended),
            "beam search ended early": each.ended_early,
            "tie between answers": each.margin <= _TIE,
        }
        for name, fact in facts.items():
            fact.of += 1
            fact.count += met[name]
    return list(facts.values())
