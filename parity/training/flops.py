"""The matrix products of a training step."""

from collections.abc import Mapping

import numpy as np

from parity.spec.networks import NETWORKS
from parity.spec.spec import Spec


def product_flops(spec: Spec, lengths: Mapping[str, np.ndarray]) -> int:
    """Return the floating-point operations of a training step's matrix products.

    Only real tokens count. The backward pass takes twice as many as the forward pass, because
    the gradient of a product is one product for each factor. An addition and a multiplication
    are two operations.

    Args:
      spec: the network.
      lengths: the network's arrays with the lengths of all rows of the batch, by name.
    """
    target = int(lengths["lengths"].sum())
    source = int(lengths.get("source_lengths", np.zeros(1)).sum())
    forward = 0
    for parameter in NETWORKS[spec.network].parameters(spec.model):
        name, shape = parameter.name, parameter.shape
        if name.endswith("kernel") and len(shape) == 2:
            of_source = name.startswith("encoder/") or name == "attention/memory_kernel"
            forward += 2 * shape[0] * shape[1] * (source if of_source else target)
    if "source_lengths" in lengths:  # the scores and the context of each target step
        pairs = int((lengths["lengths"] * lengths["source_lengths"]).sum())
        forward += 4 * pairs * int(spec.model.hidden_size)
    return 3 * forward
