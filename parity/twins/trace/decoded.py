"""What a trace records of decoding after its last step."""

from collections.abc import Mapping, Sequence

import numpy as np

from parity.twins.decoding.beam import beam_search
from parity.twins.decoding.hypotheses import DecodingModel, Hypotheses
from parity.twins.decoding.token_by_token import greedy_search

SEARCHES = ("greedy", "beam")
DECODED = (
    *(f"decode/{name}" for name in ("source", "source_lengths", "settings")),
    *(
        f"decode/{search}_{part}"
        for search in SEARCHES
        for part in ("tokens", "finished", "scores")
    ),
)


def decode(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    beam: int,
    length_penalty: float,
    most: int,
) -> dict[str, list[Hypotheses]]:
    """Return search -> the hypotheses of each sentence.

    Args:
      source: int64 [sentences, source_time].
      source_lengths: int64 [sentences].
      beam: the number of hypotheses that beam search keeps.
      length_penalty: alpha of Wu et al. 2016, equation 14.
      most: the largest number of tokens to produce, `<eos>` included.
    """
    return {
        "greedy": greedy_search(model, source, source_lengths, most),
        "beam": beam_search(model, source, source_lengths, beam, length_penalty, most),
    }


def decode_tensors(
    source: np.ndarray,
    source_lengths: np.ndarray,
    found: Mapping[str, Sequence[Hypotheses]],
    beam: int,
    length_penalty: float,
    most: int,
    *,
    best: bool = False,
) -> dict[str, np.ndarray]:
    """Return what a trace records of decoding: name -> array.

    Greedy search has one hypothesis for each sentence, beam search `beam`. Tokens are
    [sentences, hypotheses, most], without `<eos>`, and -1 after the end; finished
    [sentences, hypotheses] says whether `<eos>` came. Scores, in nats, are -inf where a search
    found fewer hypotheses.

    Args:
      found: search -> the hypotheses of each sentence, as `decode` returns them.
      best: whether the best hypothesis of each sentence is all that counts.
    """
    tensors = {
        "decode/source": source,
        "decode/source_lengths": source_lengths,
        "decode/settings": np.array([beam, length_penalty, most], np.float64),
    }
    for search, sentences in found.items():
        width = 1 if best or search == "greedy" else beam
        shape = len(sentences), width
        tokens = np.full((*shape, most), -1, np.int64)
        finished, scores = np.zeros(shape, bool), np.full(shape, -np.inf)
        for row, hypotheses in enumerate(sentences):
            for rank, hypothesis in enumerate(hypotheses.ranked[:width]):
                tokens[row, rank, : len(hypothesis.tokens)] = hypothesis.tokens
                finished[row, rank] = hypothesis.finished
                scores[row, rank] = hypothesis.score
        tensors |= {
            f"decode/{search}_tokens": tokens,
            f"decode/{search}_finished": finished,
            f"decode/{search}_scores": scores,
        }
    return tensors
