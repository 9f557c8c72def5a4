"""Weights and settings that make a search meet every way in which an answer can end.

A network that has learnt its text ends nearly all answers by itself, long before the limit, and
hardly ever has two tokens that are equally probable. A search that breaks ties the other way,
forces `<eos>` at the limit, or stops as soon as its pool of finished answers is full then gives
the same answers. So besides the trained weights as they are, all sides also answer

- with a limit of six tokens, at which every answer is cut off because `<eos>` is made
  improbable, and with a projection made four times as steep: the likeliest first token then
  often does not begin the best answer, so that a search which follows fewer hypotheses finds
  another one;
- with two tokens equally probable, the most probable ones: the lower id must be chosen;
- where hypotheses finish early, but going on to the limit gives a better score: the pool of
  finished answers is full long before the best answer is found.

In the last two the projection's kernel is zero, so that every token has the probability that
the bias gives it, whatever the rest of the network computes. No decision depends on rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID, PAIR_SPECIAL
from parity.twins.compare.answers import AnswerSettings

_KERNEL, _BIAS = "weight/softmax/kernel", "weight/softmax/bias"


@dataclass(frozen=True)
class Probe:
    """One way to have all sides answer the test questions.

    Attributes:
      search: the settings of the search.
      snapshot: the weights and the optimizer's state to answer with.
    """

    search: AnswerSettings
    snapshot: Mapping[str, np.ndarray]


def answer_probes(
    snapshot: Mapping[str, np.ndarray], beam: int, length_penalty: float, longest: int
) -> list[Probe]:
    """Return how all sides are to answer, the trained weights as they are first.

    Args:
      snapshot: the trained weights and the optimizer's state.
      beam: the number of hypotheses that beam search keeps.
      length_penalty: the exponent of the length penalty.
      longest: the largest number of tokens in an answer, `<eos>` included.
    """
    ties = AnswerSettings("two tokens equally probable", beam, length_penalty, 1, exact=True)
    full = AnswerSettings("a pool that is full early", 2, 1.0, longest, exact=True, usual=True)
    return [
        Probe(
            AnswerSettings("trained weights", beam, length_penalty, longest, usual=True),
            snapshot,
        ),
        Probe(
            AnswerSettings("a limit of six tokens", beam, length_penalty, 6),
            _without_ends(snapshot),
        ),
        Probe(ties, _with_equal_tokens(snapshot)),
        Probe(full, _with_early_ends(snapshot)),
    ]


def _without_ends(snapshot: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights that end no answer, and depend more on what was written before."""
    bias = snapshot[_BIAS].copy()
    bias[PAIR_EOS_ID] = -20
    return dict(snapshot) | {_KERNEL: 4 * snapshot[_KERNEL], _BIAS: bias}


def _with_equal_tokens(snapshot: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights that make the first and the last word equally, and most, probable."""
    bias = np.zeros_like(snapshot[_BIAS])
    bias[[len(PAIR_SPECIAL), -1]] = 10
    return _by_bias(snapshot, bias)


def _with_early_ends(snapshot: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights with which one word has most of the probability, and `<eos>` a tenth."""
    bias = np.full_like(snapshot[_BIAS], -20)
    bias[len(PAIR_SPECIAL)], bias[PAIR_EOS_ID] = np.log(0.9), np.log(0.1)
    return _by_bias(snapshot, bias)


def _by_bias(snapshot: Mapping[str, np.ndarray], bias: np.ndarray) -> dict[str, np.ndarray]:
    return dict(snapshot) | {_KERNEL: np.zeros_like(snapshot[_KERNEL]), _BIAS: bias}
