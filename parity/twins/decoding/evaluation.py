"""How good the answers of a trained network are: BLEU, and the share of exact matches."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from parity.twins.decoding.hypotheses import Hypotheses, Hypothesis

_QUESTIONS_PER_BATCH = 64
# sacrebleu's tokenizer, by the segmenter that the answers had in training.
_TOKENIZERS = {"chinese": "zh", "characters": "zh", "english": "13a", "spaces": "none"}


def find_answers(
    search: Callable[[np.ndarray, np.ndarray], Sequence[Hypotheses]],
    text: Any,
    split: str,
    rows: Sequence[int],
    check: Callable[[], None] = lambda: None,
) -> list[Hypothesis]:
    """Answer questions of a split; return the best hypothesis for each.

    Args:
      search: decodes questions: int [questions, source_time], and their lengths.
      text: the text of the run, a `TextSource`.
      split: train, valid or test.
      rows: the numbers of the questions.
      check: called after each batch; it raises an exception to stop.
    """
    answers = list[Hypothesis]()
    for part in in_batches(len(rows), f"answering, {split}", "sentence"):
        answers += [found.best for found in search(*text.sources(split, rows[part]))]
        check()
    return answers


def in_batches(count: int, what: str, unit: str, shown: bool = True) -> Iterator[slice]:
    """Yield which of some questions to answer at a time; a terminal shows how many were."""
    hidden = not shown or not sys.stderr.isatty()
    with tqdm(desc=what, total=count, unit=unit, leave=False, disable=hidden) as bar:
        for start in range(0, count, _QUESTIONS_PER_BATCH):
            stop = min(start + _QUESTIONS_PER_BATCH, count)
            yield slice(start, stop)
            bar.update(stop - start)


def bleu(answers: Sequence[str], references: Sequence[str], segmenter: str) -> dict[str, Any]:
    """Return the corpus BLEU of answers: score (0 to 100), signature, sentences.

    Args:
      answers: what the network wrote.
      references: the right answers, in the same order.
      segmenter: the one that the answers had in training, which decides how BLEU tokenizes
        them: Chinese by character ("zh"), English as mteval-v13a does, tokenized text at
        spaces. English is scored in lower case, as it was learnt; the signature says "case:lc".

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771 (sacrebleu).
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(
        tokenize=_TOKENIZERS[segmenter],
        lowercase=segmenter == "english",
        force=segmenter == "spaces",  # no warning that the text looks tokenized: it is
    )
    score = metric.corpus_score(list(answers), [list(references)])
    return {
        "score": score.score,
        "signature": str(metric.get_signature()),
        "sentences": len(answers),
    }


def exact_share(answers: Sequence[str], references: Sequence[str], segmenter: str) -> float:
    """Return the share of answers that equal the reference, apart from white space.

    Args:
      answers: what the network wrote.
      references: the right answers, in the same order.
      segmenter: the one that the answers had in training; in English it loses case and the form
        of apostrophes, so these do not count.
    """

    def letters(text: str) -> str:
        if segmenter == "english":
            text = text.lower().replace("’", "'")
        return "".join(text.split())

    same = [letters(a) == letters(b) for a, b in zip(answers, references, strict=True)]
    return sum(same) / len(same)
