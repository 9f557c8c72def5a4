"""How good the answers of a trained network are: BLEU, and the share of exact ones."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from parity.decoding.beam import beam_search
from parity.decoding.model import DecodingModel

_AT_ONCE = 64  # sentences decoded together
# How sacrebleu cuts text, by how the answers were cut for training.
_TOKENIZERS = {"chinese": "zh", "english": "13a", "spaces": "none"}


def write_answers(
    model: DecodingModel,
    text: Any,
    split: str,
    beam: int,
    length_penalty: float,
    most: int,
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Answer every question of a split by beam search.

    Args:
      text: TrainingText.
      beam, length_penalty, most: as in `beam_search`.
      check: called now and then; raises to stop.
    """
    answers = []
    count = text.num_sources(split)
    with tqdm(
        desc=f"answering, {split}",
        total=count,
        unit="sentence",
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as bar:
        for start in range(0, count, _AT_ONCE):
            rows = range(start, min(start + _AT_ONCE, count))
            source, lengths = text.sources(split, rows)
            found = beam_search(model, source, lengths, beam, length_penalty, most)
            answers += [text.write(hypotheses.best.tokens) for hypotheses in found]
            bar.update(len(rows))
            check()
    return answers


def bleu(answers: Sequence[str], references: Sequence[str], segmenter: str) -> dict[str, Any]:
    """Return the corpus BLEU of answers: score (0 to 100), signature, sentences.

    Args:
      segmenter: how the answers were cut for training, which decides how BLEU cuts them:
        Chinese by character ("zh"), English as mteval-v13a does, tokenised text at spaces.
        English is scored in lower case, for so it was learnt; the signature says "case:lc".

    Source: Papineni et al. 2002; Post 2018, arXiv:1804.08771 (sacrebleu).
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(
        tokenize=_TOKENIZERS[segmenter],
        lowercase=segmenter == "english",
        force=segmenter == "spaces",  # no warning that the text looks tokenised: it is
    )
    score = metric.corpus_score(list(answers), [list(references)])
    return {
        "score": score.score,
        "signature": str(metric.get_signature()),
        "sentences": len(answers),
    }


def exact_share(answers: Sequence[str], references: Sequence[str], segmenter: str) -> float:
    """Return the share of answers that are the reference, but for white space.

    Args:
      segmenter: how the answers were cut for training; of English, case and the form of
        apostrophes are lost there, and do not count here.
    """

    def letters(text: str) -> str:
        if segmenter == "english":
            text = text.lower().replace("’", "'")
        return "".join(text.split())

    same = [letters(a) == letters(b) for a, b in zip(answers, references, strict=True)]
    return sum(same) / len(same)
