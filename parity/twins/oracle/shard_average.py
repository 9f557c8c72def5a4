"""The gradient of replicas that count alike, however many tokens each of them has.

Multi-GPU tutorials average the gradients of the replicas' mean losses with equal weights. That
is the gradient of the global mean loss only while all replicas have as many real tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from parity.base.replaceable import original
from parity.twins.oracle.training import run_network
from parity.twins.spec.spec import Spec

Arrays = dict[str, np.ndarray]


def run_network_by_shards(
    spec: Spec,
    weights: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
    masks: Mapping[str, np.ndarray],
    state: Mapping[str, np.ndarray],
    d_activations: Arrays | None,
    divisor: int,
    sizes: Sequence[int],
) -> tuple[Arrays, Arrays]:
    """Run the network on the whole batch, but average the gradients of its shards alike.

    A replacement of `run_network`, with the same arguments. A shard without a real token has a
    gradient of zero, and counts like the others.

    Args:
      sizes: rows per replica; these are the shards.
    """
    run = original(run_network)
    activations, gradients = run(
        spec, weights, batch, masks, state, d_activations, divisor, sizes
    )
    averaged = {name: np.zeros_like(gradient) for name, gradient in gradients.items()}
    tokens = int(batch["lengths"].sum())
    for start, stop in pairwise(np.cumsum([0, *sizes])):
        shard = {name: array[start:stop] for name, array in batch.items()}
        in_shard = int(shard["lengths"].sum())
        if not in_shard:
            continue
        _, gradients = run(
            spec,
            weights,
            shard,
            {name: array[start:stop] for name, array in masks.items()},
            {name: array[start:stop] for name, array in state.items()},
            None,
            len(sizes) * in_shard * divisor / tokens,  # type: ignore[arg-type]
            [stop - start],
        )
        for name, gradient in gradients.items():
            averaged[name] += gradient
    return activations, averaged
