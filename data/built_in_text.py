"""The embedded corpus: sentences of a small stochastic grammar, each of known probability.

A sentence stays with one of six topics, and its verb agrees in number with its subject, with
other nouns of either number in between, so a model must remember in order to predict well.
Each sentence has only one derivation: its probability is the product of those of its choices.

All randomness is `random.Random(seed).random()`, whose stream Python promises not to change.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from parity.base.files import write_whole

VERSION = 1  # a change to what is generated must raise this

NUM_SENTENCES = {"train": 14_000, "valid": 1_400, "test": 1_400}
_SEEDS = {"train": 1, "valid": 2, "test": 3}

# nouns form the plural, and verbs the singular, with a final s
_TOPICS = {
    "farm": {
        "noun": "cow goat farmer hen tractor barn",
        "moves": "graze rest wander",
        "acts": "feed follow herd",
        "adjective": "muddy brown gentle hungry",
    },
    "sea": {
        "noun": "sailor ship whale captain gull anchor",
        "moves": "drift sink swim",
        "acts": "tow spot rescue",
        "adjective": "salty blue rusty wet",
    },
    "kitchen": {
        "noun": "baker kettle spoon waiter oven plate",
        "moves": "sizzle steam clatter",
        "acts": "stir taste burn",
        "adjective": "warm greasy copper clean",
    },
    "music": {
        "noun": "drummer violin singer piano trumpet dancer",
        "moves": "play resound hum",
        "acts": "tune applaud hear",
        "adjective": "loud soft famous tuneful",
    },
    "castle": {
        "noun": "king knight queen guard horse tower",
        "moves": "kneel fall reign",
        "acts": "crown defend greet",
        "adjective": "royal brave cruel noble",
    },
    "space": {
        "noun": "pilot rocket planet robot comet star",
        "moves": "orbit glow land",
        "acts": "scan launch photograph",
        "adjective": "distant bright silver frozen",
    },
}
_DETERMINERS = {"singular": "the a this every", "plural": "the many these several"}
_PREPOSITIONS = "near behind beside above"
_ADVERBS = "slowly often quietly again today together"

# A symbol is a word, or a name in the grammar; a rule is its probability and its symbols.
Rule = tuple[float, tuple[str, ...]]
Grammar = dict[str, tuple[Rule, ...]]


@functools.cache
def grammar() -> Grammar:
    """Return the grammar: name -> rules; `SENTENCE` is the start.

    Names are in capitals, followed by topic and number in brackets where these matter.
    """
    rules: Grammar = {}
    pairs = [(topic, number) for topic in _TOPICS for number in _DETERMINERS]
    rules["SENTENCE"] = _ranked([(f"CLAUSE[{topic},{number}]",) for topic, number in pairs])
    rules["ANY"] = _even([(f"PHRASE[{topic},{number}]",) for topic, number in pairs])
    rules["PREPOSITION"] = _words(_PREPOSITIONS)
    rules["ADVERB"] = _words(_ADVERBS)
    for number, determiners in _DETERMINERS.items():
        rules[f"DETERMINER[{number}]"] = _words(determiners)
    for topic, words in _TOPICS.items():
        adjectives, adjective = f"ADJECTIVES[{topic}]", f"ADJECTIVE[{topic}]"
        rules[adjective] = _words(words["adjective"])
        rules[adjectives] = ((0.75, ()), (0.25, (adjective, adjectives)))
        objects = [(f"PHRASE[{topic},{number}]",) for number in _DETERMINERS]
        rules[f"OBJECT[{topic}]"] = _even(objects)
    for topic, number in pairs:
        words, mark = _TOPICS[topic], f"[{topic},{number}]"
        noun_end, verb_end = ("", "s") if number == "singular" else ("s", "")
        rules[f"NOUN{mark}"] = _words(words["noun"], noun_end)
        rules[f"MOVES{mark}"] = _words(words["moves"], verb_end)
        rules[f"ACTS{mark}"] = _words(words["acts"], verb_end)
        determiner, adjectives = f"DETERMINER[{number}]", f"ADJECTIVES[{topic}]"
        rules[f"PHRASE{mark}"] = ((1.0, (determiner, adjectives, f"NOUN{mark}")),)
        rules[f"VERB{mark}"] = (
            (0.35, (f"MOVES{mark}",)),
            (0.50, (f"ACTS{mark}", f"OBJECT[{topic}]")),
            (0.15, (f"MOVES{mark}", "ADVERB")),
        )
        phrase, verb = f"PHRASE{mark}", f"VERB{mark}"
        rules[f"CLAUSE{mark}"] = (
            (0.60, (phrase, verb)),
            (0.25, (phrase, "PREPOSITION", "ANY", verb)),
            # "the cows that the farmer feeds rest": one verb waits for another
            (0.15, (phrase, "that", f"INNER[{topic}]", verb)),
        )
    for topic in _TOPICS:
        inner = [(f"PHRASE[{topic},{n}]", f"ACTS[{topic},{n}]") for n in _DETERMINERS]
        rules[f"INNER[{topic}]"] = _even(inner)
    return rules


def sentences(split: str) -> Iterator[tuple[list[str], float]]:
    """Yield a split's sentences: words without `<eos>`, and the log of the probability."""
    draw = random.Random(_SEEDS[split]).random
    for _ in range(NUM_SENTENCES[split]):
        yield _sentence(draw)


def write_corpus(folder: Path) -> None:
    """Write train.txt, valid.txt and test.txt, a sentence a line; the same on every machine.

    Raises:
      UsageError: if a file cannot be written.
    """
    for split in NUM_SENTENCES:
        text = "".join(" ".join(words) + "\n" for words, _ in sentences(split))
        write_whole(folder / f"{split}.txt", text.encode())


@functools.cache
def best_perplexity(split: str) -> float:
    """Return the perplexity per token, `<eos>` included, of a split under the grammar itself.

    A perfect model of the source would reach it; on average over corpora nothing does better.
    """
    log_probability, num_tokens = 0.0, 0
    for words, sentence_log_probability in sentences(split):
        log_probability += sentence_log_probability
        num_tokens += len(words) + 1
    return math.exp(-log_probability / num_tokens)


def _sentence(draw: Callable[[], float]) -> tuple[list[str], float]:
    rules, words, log_probability = grammar(), [], 0.0
    waiting = ["SENTENCE"]
    while waiting:
        symbol = waiting.pop()
        if symbol not in rules:
            words.append(symbol)
            continue
        probability, symbols = _choice(rules[symbol], draw())
        log_probability += math.log(probability)
        waiting.extend(reversed(symbols))
    return words, log_probability


def _choice(rules: Sequence[Rule], level: float) -> Rule:
    for rule in rules:
        level -= rule[0]
        if level < 0:
            return rule
    return rules[-1]  # because of rounding, probabilities may add up to slightly less than 1


def _even(choices: Sequence[tuple[str, ...]]) -> tuple[Rule, ...]:
    return tuple((1 / len(choices), symbols) for symbols in choices)


def _ranked(choices: Sequence[tuple[str, ...]]) -> tuple[Rule, ...]:
    """Make the n-th choice 1/n times as likely as the first, as words in a text are (Zipf)."""
    total = sum(1 / rank for rank in range(1, len(choices) + 1))
    return tuple((1 / rank / total, symbols) for rank, symbols in enumerate(choices, 1))


def _words(words: str, ending: str = "") -> tuple[Rule, ...]:
    return _ranked([(word + ending,) for word in words.split()])
