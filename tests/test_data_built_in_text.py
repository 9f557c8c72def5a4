"""The embedded corpus is the same everywhere and its entropy is what it is said to be."""

import functools
import hashlib
import itertools
import math

import numpy as np
import pytest

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


def test_every_rule_is_a_distribution():
    for name, rules in synthetic_text.grammar().items():
        assert math.isclose(sum(p for p, _ in rules), 1, rel_tol=1e-12), name
        assert all(p > 0 for p, _ in rules), name


def test_sentences_have_one_derivation_and_its_probability():
    for words, log_probability in itertools.islice(synthetic_text.sentences("valid"), 150):
        total = probability_of_all_derivations(synthetic_text.grammar(), tuple(words))
        assert math.isclose(math.log(total), log_probability, rel_tol=1e-9), words


def test_entropy_of_a_small_grammar_matches_enumeration():
    rules = {
        "SENTENCE": ((0.3, ("a",)), (0.7, ("b", "X", "X"))),
        "X": ((0.2, ("c",)), (0.5, ("d",)), (0.3, ("e", "Y"))),
        "Y": ((0.6, ("f",)), (0.4, ("g", "h"))),
    }

    def expand(symbols):
        if not symbols:
            yield 1.0, ()
        elif symbols[0] not in rules:
            for p, rest in expand(symbols[1:]):
                yield p, (symbols[0], *rest)
        else:
            for p, expansion in rules[symbols[0]]:
                for q, rest in expand(expansion + symbols[1:]):
                    yield p * q, rest

    language = list(expand(("SENTENCE",)))
    assert len({words for _, words in language}) == len(language) == 1 + 4 * 4
    entropy = -sum(p * math.log(p) for p, _ in language)
    tokens = sum(p * (len(words) + 1) for p, words in language)
    assert math.isclose(synthetic_text.entropy_per_sentence(rules), entropy, rel_tol=1e-12)
    assert math.isclose(synthetic_text.tokens_per_sentence(rules), tokens, rel_tol=1e-12)


def test_entropy_of_a_repeating_grammar_matches_its_closed_form():
    # n times "a", n geometric with mean q / (1 - q), then "b"
    q = 0.25
    rules = {"SENTENCE": ((q, ("a", "SENTENCE")), (1 - q, ("b",)))}
    entropy = -(q * math.log(q) + (1 - q) * math.log(1 - q)) / (1 - q)
    assert math.isclose(synthetic_text.entropy_per_sentence(rules), entropy, rel_tol=1e-12)
    assert math.isclose(
        synthetic_text.tokens_per_sentence(rules), q / (1 - q) + 2, rel_tol=1e-12
    )


def test_entropy_and_length_match_a_large_sample():
    sample = list(synthetic_text.sentences("train"))
    surprise = np.array([-log_probability for _, log_probability in sample])
    tokens = np.array([len(words) + 1 for words, _ in sample])
    for values, expected in (
        (surprise, synthetic_text.entropy_per_sentence()),
        (tokens, synthetic_text.tokens_per_sentence()),
    ):
        standard_error = values.std(ddof=1) / math.sqrt(len(values))
        assert standard_error < 0.01 * expected  # else the next line says little
        assert abs(values.mean() - expected) < 4 * standard_error


def test_perplexities_agree_with_each_other():
    expected = synthetic_text.grammar_perplexity()
    assert expected == math.exp(synthetic_text.entropy_per_token())
    assert 4 < expected < 10
    for split in synthetic_text.NUM_SENTENCES:
        assert synthetic_text.best_perplexity(split) == pytest.approx(expected, rel=0.05)


def test_corpus_is_the_same_everywhere(tmp_path):
    synthetic_text.write_corpus(tmp_path)
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in sorted(tmp_path.iterdir())
    }
    assert hashes == {
        "test.txt": "d48bdf6ac6075c0e",
        "train.txt": "df1295f554709f31",
        "valid.txt": "07dfa87ddae4a035",
    }


def test_splits_differ_and_have_the_promised_size():
    texts = {s: list(synthetic_text.sentences(s)) for s in synthetic_text.NUM_SENTENCES}
    tokens = {s: sum(len(words) + 1 for words, _ in text) for s, text in texts.items()}
    assert 90_000 < tokens["train"] < 110_000
    assert 9_000 < tokens["valid"] < 11_000
    assert 9_000 < tokens["test"] < 11_000
    assert texts["valid"] != texts["test"]
    assert texts["train"][:100] != texts["test"][:100]
    words = {word for words, _ in texts["train"] for word in words}
    assert 150 <= len(words) <= 250
    for split in ("valid", "test"):  # nothing is <unk>, so the best perplexity applies
        assert {word for sentence, _ in texts[split] for word in sentence} <= words


def test_verb_agrees_over_other_nouns():
    # "the cow near these barns grazes": the nearest noun is plural, the verb singular
    across = [
        words
        for words, _ in synthetic_text.sentences("train")
        if words[-1] == "grazes" and any(word in ("barns", "ships", "kings") for word in words)
    ]
    assert across
    for words in across:
        assert words[0] not in ("many", "these", "several")
