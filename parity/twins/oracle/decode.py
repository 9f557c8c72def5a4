"""Decoding with the oracle: a model for the searches, and scores of given answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from parity.base.special_tokens import PAIR_EOS_ID, PAIR_GO_ID
from parity.twins.decoding.hypotheses import DecoderState
from parity.twins.oracle.attention import Memory
from parity.twins.oracle.decoder import decoder_step
from parity.twins.oracle.layers import log_softmax
from parity.twins.oracle.recurrent import NUM_STATES
from parity.twins.oracle.seq2seq import encode, forward
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
