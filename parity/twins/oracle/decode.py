"""Decoding with the oracle: a model for the searches, and references to compare them with."""

from collections.abc import Mapping, Sequence

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID, PAIR_GO_ID
from parity.twins.decoding.hypotheses import Hypotheses, Hypothesis
from parity.twins.decoding.length_penalty import length_penalty_of
from parity.twins.decoding.model import DecoderState, DecodingModel
from parity.twins.oracle.attention import Memory
from parity.twins.oracle.decoder import decoder_step
from parity.twins.oracle.encoder import encode
from parity.twins.oracle.layers import log_softmax
from parity.twins.oracle.recurrent import NUM_STATES
from parity.twins.oracle.seq2seq import forward
from parity.twins.spec.networks.seq2seq import Seq2seqSpec


class OracleModel:
    """The oracle's network with its weights, as the searches of parity/twins/decoding use it.

    Attributes:
      model: the network's sizes.
      weights: parameter name -> array.
    """

    def __init__(
        self,
        model: Seq2seqSpec,
        weights: Mapping[str, np.ndarray],
        dtype: type[np.floating] = np.float64,
    ):
        """Take the weights in any precision, to compute in one of them."""
        self.model = model
        self.weights = {name: np.asarray(a, dtype) for name, a in weights.items()}

    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Encode the sources, int64 [rows, source_time] and [rows]."""
        memory, states, _, _ = encode(self.model, self.weights, source, source_lengths, {})
        return {
            "values": memory.values,
            "keys": memory.keys,
            "real": memory.real,
            "fed": np.zeros((len(source), self.model.hidden_size)),
            "weights": np.zeros(source.shape),
        } | _stacked(states)

    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row; return log probabilities [rows, vocabulary] and the state."""
        memory = Memory(state["values"], state["keys"], state["real"])
        names = "hc"[: NUM_STATES[self.model.cell]]
        states = [
            tuple(state[name][:, k] for name in names) for k in range(self.model.num_layers)
        ]
        x = self.weights["decoder/embed/table"][tokens]
        on = np.ones((len(tokens), 1), bool)
        found, states, _ = decoder_step(
            self.model, self.weights, memory, x, states, state["fed"], on, {}
        )
        output = found["attention/output"]
        logits = output @ self.weights["softmax/kernel"] + self.weights["softmax/bias"]
        after = {"fed": output, "weights": found["attention/weights"]}
        return log_softmax(logits), state | after | _stacked(states)


def exhaustive(
    model: DecodingModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    length_penalty: float,
    most: int,
) -> list[Hypotheses]:
    """Score every possible answer: a vocabulary of V has more than (V - 3) ** most of them.

    Args:
      model: of the oracle or of a framework.
      source, source_lengths: int64 [sentences, source_time] and [sentences].
      length_penalty: alpha of Wu et al. 2016, equation 14.
      most: the largest number of tokens to produce, `<eos>` included.

    Returns:
      Per sentence all answers, best first: those that `<eos>` ends within `most` tokens, and
      those of `most` tokens without it. Margins are infinite, for nothing was rejected.
    """
    found = []
    for row in range(len(source)):
        state = model.start(source[row : row + 1], source_lengths[row : row + 1])
        answers: list[Hypothesis] = []
        prefixes: list[tuple[int, ...]] = [()]
        totals = np.zeros(1)
        for length in range(1, most + 1):
            last = [prefix[-1] if prefix else PAIR_GO_ID for prefix in prefixes]
            log_probs, state = model.step(np.array(last), state)
            penalty = length_penalty_of(length, length_penalty)
            ended = totals + log_probs[:, PAIR_EOS_ID]
            for prefix, total in zip(prefixes, ended.tolist(), strict=True):
                answers.append(Hypothesis(prefix, True, total, total / penalty))
            words = range(PAIR_EOS_ID + 1, log_probs.shape[1])
            totals = (totals[:, None] + log_probs[:, PAIR_EOS_ID + 1 :]).reshape(-1)
            state = {
                name: np.repeat(array, len(words), axis=0) for name, array in state.items()
            }
            prefixes = [(*prefix, word) for prefix in prefixes for word in words]
        for prefix, total in zip(prefixes, totals.tolist(), strict=True):
            answers.append(Hypothesis(prefix, False, total, total / penalty))
        answers.sort(key=lambda answer: -answer.score)
        found.append(Hypotheses(tuple(answers), np.inf))
    return found


def rescore(
    model: OracleModel,
    source: np.ndarray,
    source_lengths: np.ndarray,
    tokens: Sequence[Sequence[int]],
    finished: Sequence[bool],
) -> np.ndarray:
    """Return the log probability of one given answer per sentence, read as in training.

    Args:
      source, source_lengths: int64 [sentences, source_time] and [sentences].
      tokens: the tokens of each answer, without `<eos>`.
      finished: whether `<eos>` follows, for each answer.

    Returns:
      float64 [sentences], in nats.
    """
    targets = [
        [*answer, PAIR_EOS_ID] if ends else list(answer)
        for answer, ends in zip(tokens, finished, strict=True)
    ]
    lengths = np.array([len(row) for row in targets])
    batch = {
        "source": source,
        "source_lengths": source_lengths,
        "tokens": np.zeros((len(targets), max(1, lengths.max(initial=0))), np.int64),
        "lengths": lengths,
    }
    batch["targets"] = np.zeros_like(batch["tokens"])
    for row, answer in enumerate(targets):
        batch["targets"][row, : len(answer)] = answer
        batch["tokens"][row, : len(answer)] = [PAIR_GO_ID, *answer][: len(answer)]
    activations, _ = forward(model.model, model.weights, batch, {})
    total: np.ndarray = -activations["token_loss"].sum(axis=1, dtype=np.float64)
    return total


def _stacked(states: Sequence[tuple[np.ndarray, ...]]) -> DecoderState:
    """Return h [rows, layers, hidden], and c of an LSTM."""
    return {
        name: np.stack(parts, axis=1)
        for name, parts in zip("hc", zip(*states, strict=True), strict=False)
    }
