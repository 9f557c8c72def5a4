"""The embedded corpus is as probable as it is said to be."""

import functools
import itertools
import math

from data import built_in_text as synthetic_text


def probability_of_all_derivations(rules, words):
    """Sum over every derivation: the inside algorithm, which knows nothing of the generator."""

    @functools.cache
    def inside(symbols, start, stop):
        if not symbols:
            return float(start == stop)
        head, rest = symbols[0], symbols[1:]
        if head not in rules:
            return (
                inside(rest, start + 1, stop) if start < stop and words[start] == head else 0.0
            )
        if not rest:
            return sum(p * inside(expansion, start, stop) for p, expansion in rules[head])
        return sum(
            first * inside(rest, middle, stop)
            for middle in range(start, stop + 1)
            if (first := inside((head,), start, middle))
        )

    return inside(("SENTENCE",), 0, len(words))


def test_sentences_have_one_derivation_and_its_probability():
    for words, log_probability in itertools.islice(synthetic_text.sentences("valid"), 150):
        total = probability_of_all_derivations(synthetic_text.grammar(), tuple(words))
        assert math.isclose(math.log(total), log_probability, rel_tol=1e-9), words
