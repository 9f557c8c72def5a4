"""Attention in plain NumPy and float64, forward and backward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.twins.oracle.layers import rows_of, tanh
from parity.twins.oracle.perturbation import perturbed, summed
from parity.twins.spec.replaceable import replaceable

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Memory:
    """What attention reads.

    Attributes:
      values: [batch, source_time, hidden], outputs of the encoder.
      keys: the same times attention/memory_kernel; for "dot", the values themselves.
      real: bool [batch, source_time], true up to each row's length.
    """

    values: np.ndarray
    keys: np.ndarray
    real: np.ndarray


@replaceable
def memory_forward(
    kind: str, weights: Mapping[str, np.ndarray], values: np.ndarray, real: np.ndarray
) -> Memory:
    """Compute the keys, the part of the scores that is the same for every query."""
    keys = values
    if kind != "dot":
        kernel = weights["attention/memory_kernel"]
        keys = (rows_of(values) @ kernel).reshape(values.shape)
    return Memory(values, keys, real)


@replaceable
def memory_backward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    d_memory: tuple[np.ndarray, np.ndarray],
    gradients: Arrays,
) -> np.ndarray:
    """Go back through `memory_forward`: add the kernel's gradient, return that of the values.

    Args:
      d_memory: gradients with respect to values and keys, gathered over all queries.
    """
    d_values, d_from_keys = d_memory
    if kind != "dot":
        kernel = weights["attention/memory_kernel"]
        gradients["attention/memory_kernel"] += rows_of(memory.values).T @ rows_of(d_from_keys)
        d_from_keys = (rows_of(d_from_keys) @ kernel.T).reshape(d_from_keys.shape)
    total: np.ndarray = d_values + d_from_keys
    return total


def attention_forward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    query: np.ndarray,
    on: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Attend to the memory with one query per row.

        dot      score_s = q . m_s                    general  score_s = q . (m_s K)
        scaled   score_s = g (q . (m_s K))            bahdanau score_s = v . tanh(q Q + m_s K)
        weights = softmax over the real s,   context = sum_s weights_s m_s

    Args:
      kind: "dot", "general", "scaled" or "bahdanau".
      weights: parameter name -> array; only those that start with "attention/" are used.
      query: [batch, hidden].
      on: bool [batch, 1]; where it is false, weights and context are zero.

    Returns:
      weights [batch, source_time], exactly zero beyond each length; context [batch, hidden];
      and what `attention_backward` needs.

    Source: Luong et al. 2015, arXiv:1508.04025, equations 7 and 8; Bahdanau et al. 2015,
      arXiv:1409.0473, appendix A.1.2.
    """
    if kind == "bahdanau":
        moved = query @ weights["attention/query_kernel"]
        seen = tanh(moved[:, None] + memory.keys)
        raw = (rows_of(seen) @ weights["attention/score_kernel"]).reshape(memory.real.shape)
    else:
        seen = memory.keys
        raw = (memory.keys @ query[:, :, None])[:, :, 0]
    scores = raw * weights["attention/scale"] if kind == "scaled" else raw
    scores = np.where(memory.real, scores, -np.inf)
    attended = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended = np.where(on, perturbed(attended / summed(attended, axis=1, keepdims=True)), 0)
    context = (attended[:, None] @ memory.values)[:, 0]
    return attended, context, (query, seen, raw, attended)


def attention_backward(
    kind: str,
    weights: Mapping[str, np.ndarray],
    memory: Memory,
    d_context: np.ndarray,
    saved: Any,
    gradients: Arrays,
    d_memory: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Go back through `attention_forward`, and return the gradient of the query.

    Args:
      gradients: parameter name -> array; the gradients of the attention's parameters are added.
      d_memory: gradients with respect to the memory's values and keys; this query's are added.
    """
    query, seen, raw, attended = saved
    d_values, d_keys = d_memory
    d_values += attended[:, :, None] * d_context[:, None]
    d_attended = (memory.values @ d_context[:, :, None])[:, :, 0]
    # softmax: d_score = weight (d_weight - sum of weight * d_weight), zero where weight is
    d_scores = attended * (d_attended - summed(attended * d_attended, axis=1, keepdims=True))
    if kind == "scaled":
        gradients["attention/scale"] += summed(d_scores * raw)
        d_scores = d_scores * weights["attention/scale"]
    if kind == "bahdanau":
        gradients["attention/score_kernel"] += rows_of(seen).T @ d_scores.reshape(-1)
        d_sum = d_scores[:, :, None] * weights["attention/score_kernel"] * (1 - seen**2)
        d_keys += d_sum
        d_moved = summed(d_sum, axis=1)
        gradients["attention/query_kernel"] += query.T @ d_moved
        d_query: np.ndarray = d_moved @ weights["attention/query_kernel"].T
    else:
        d_keys += d_scores[:, :, None] * query[:, None]
        d_query = (d_scores[:, None] @ seen)[:, 0]
    return d_query
