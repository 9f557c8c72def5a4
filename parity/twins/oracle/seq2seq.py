"""The encoder and the attending decoder in plain NumPy and float64, forward and backward."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parity.twins.oracle.attention import memory_backward
from parity.twins.oracle.decoder import decoder_backward, decoder_forward
from parity.twins.oracle.encoder import encode, encoder_backward
from parity.twins.oracle.layers import project
from parity.twins.spec.networks.seq2seq import Seq2seqSpec

Arrays = dict[str, np.ndarray]
Weights = Mapping[str, np.ndarray]


def seq2seq(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    state: Weights | None = None,
    divisor: int | None = None,
) -> tuple[Arrays, Arrays]:
    """Run the network forward and backward on a global batch.

    The loss is the summed cross entropy of the real target tokens over their number, or
    `divisor`.

    Args:
      weights: parameter name -> float64 array of canonical shape.
      batch: source [batch, source_time], source_lengths [batch], tokens and targets
        [batch, time], lengths [batch]; int64.
      masks: where dropout acts -> array [batch, time or source_time, width] of 0 or 1/keep;
        where there is none, nothing is dropped.
      state: not used; nothing is carried from batch to batch.
      divisor: what the summed loss is divided by; None for the number of real target tokens.

    Returns:
      activations: what a trace holds of the forward pass, zero beyond every row's length.
      gradients: parameter name -> array, of the loss.

    Sources: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473;
      Luong et al. 2015, arXiv:1508.04025, section 3.3 (input feeding); Wu et al. 2016,
      arXiv:1609.08144, section 3.2 (the bottom layer alone is bidirectional).
    """
    activations, saved = forward(model, weights, batch, masks, divisor)
    gradients = {name: np.zeros_like(array) for name, array in weights.items()}
    d_outputs, gradients["softmax/kernel"], gradients["softmax/bias"] = saved["projection"]
    if "attentional" in masks:
        d_outputs = d_outputs * masks["attentional"]
    d_memory, d_states = decoder_backward(
        model, weights, batch, masks, d_outputs, saved["decoder"], gradients
    )
    d_values = memory_backward(model.attention, weights, saved["memory"], d_memory, gradients)
    encoder_backward(
        model, weights, batch, masks, d_values, d_states, saved["encoder"], gradients
    )
    return activations, gradients


def forward(
    model: Seq2seqSpec,
    weights: Weights,
    batch: Mapping[str, np.ndarray],
    masks: Weights,
    divisor: int | None = None,
) -> tuple[Arrays, dict[str, Any]]:
    """Run the network forward; return its activations and what the backward pass needs."""
    memory, states, activations, encoder = encode(
        model, weights, batch["source"], batch["source_lengths"], masks
    )
    decoded, decoder = decoder_forward(model, weights, batch, masks, memory, states)
    outputs = decoded["attention/output"] * masks.get("attentional", 1.0)
    real = np.arange(batch["targets"].shape[1]) < batch["lengths"][:, None]
    projected, projection = project(
        outputs,
        real,
        batch["targets"],
        weights["softmax/kernel"],
        weights["softmax/bias"],
        divisor,
    )
    saved = {"encoder": encoder, "memory": memory, "decoder": decoder}
    return activations | decoded | projected, saved | {"projection": projection}
