"""Decoding with PyTorch's network: the steps that the searches run on."""

import numpy as np
import torch
from torch import Tensor

from parity.twins.decoding.hypotheses import DecoderState
from parity.twins.peers.pytorch_networks import Seq2seq


class Decoder:
    """Reads questions, and computes the log probabilities of each row's next token.

    Args:
      network: the trained network, whose weights at the time of each call are used.
    """

    def __init__(self, network: Seq2seq):
        self._network = network

    @torch.no_grad()
    def start(self, source: np.ndarray, source_lengths: np.ndarray) -> DecoderState:
        """Read the sources, int64 [rows, source_time] and [rows], and return the state."""
        lengths = torch.from_numpy(source_lengths)
        memory, keys, is_padding, states = self._network.read_source(
            {"source": torch.from_numpy(source), "source_lengths": lengths}
        )
        fed = torch.zeros_like(states[-1][0])
        found = {"memory": memory, "keys": keys, "is_padding": is_padding, "fed": fed}
        return _arrays(found | _stacked(states))

    @torch.no_grad()
    def step(self, tokens: np.ndarray, state: DecoderState) -> tuple[np.ndarray, DecoderState]:
        """Read one token per row; return log probabilities [rows, vocabulary] and the state."""
        held = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in state.items()}
        source = held["memory"], held["keys"], held["is_padding"]
        parts = [held[name].unbind(1) for name in "hc" if name in held]
        states = list(zip(*parts, strict=True))
        embedded = self._network.target(torch.from_numpy(np.asarray(tokens)).unsqueeze(0))
        output, states = self._network.decoder_step(embedded[0], states, held["fed"], source)
        log_probabilities = torch.log_softmax(self._network.softmax(output), dim=1)
        after = state | _arrays({"fed": output} | _stacked(states))
        return log_probabilities.numpy(), after


def _stacked(states: list[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """Return h [rows, layers, hidden], and c of an LSTM."""
    parts = zip(*states, strict=True)
    return {name: torch.stack(part, dim=1) for name, part in zip("hc", parts, strict=False)}


def _arrays(tensors: dict[str, Tensor]) -> DecoderState:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
