"""The matrix products of a training step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Parameter
from parity.twins.spec.spec import Spec


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
    for parameter, of_source in _matrices(spec):
        forward += 2 * math.prod(parameter.shape) * (source if of_source else target)
    if "source_lengths" in lengths:  # the scores and the context of each target step
        pairs = int((lengths["lengths"] * lengths["source_lengths"]).sum())
        forward += 4 * pairs * int(spec.model.hidden_size)
    return 3 * forward


@dataclass(frozen=True)
class Product:
    """A product of two matrices, [rows, inner] by [inner, columns].

    Attributes:
      first_transposed, second_transposed: whether the factor lies in memory as its transpose.
      times: how often it is taken, each time with another first factor.
    """

    rows: int
    inner: int
    columns: int
    first_transposed: bool = False
    second_transposed: bool = False
    times: int = 1

    @property
    def flops(self) -> int:
        """Return its floating-point operations, of all times together."""
        return 2 * self.times * self.rows * self.inner * self.columns

    @property
    def first_shape(self) -> tuple[int, int]:
        """Return the shape in which its first factor lies in memory."""
        shape = self.rows, self.inner
        return shape[::-1] if self.first_transposed else shape

    @property
    def second_shape(self) -> tuple[int, int]:
        """Return the shape in which its second factor lies in memory."""
        shape = self.inner, self.columns
        return shape[::-1] if self.second_transposed else shape


def step_products(spec: Spec, replicas: int) -> list[Product]:
    """Return the matrix products of one replica's step, forward and backward.

    Every row is taken to be as long as it may be. What multiplies a recurrent state is taken
    for each time step, all else once for all of them. The scores and the context of an
    attention, which are small, are left out.

    Args:
      spec: the network, its text and its training.
      replicas: how many share a batch's rows evenly.
    """
    rows = math.ceil(spec.training.batch_size / replicas)
    longest = {
        axis: most for axis, (_, most) in NETWORKS[spec.network].row_lengths(spec.text).items()
    }
    found = []
    for parameter, of_source in _matrices(spec):
        time = longest["source_time" if of_source else "time"]
        inner, columns = parameter.shape
        tokens, times = rows * time, 1
        if parameter.name.endswith("recurrent_kernel"):
            tokens, times = rows, time
        found += [
            Product(tokens, inner, columns, times=times),
            Product(tokens, columns, inner, second_transposed=True, times=times),
            Product(inner, rows * time, columns, first_transposed=True),
        ]
    return found


def _matrices(spec: Spec) -> Iterator[tuple[Parameter, bool]]:
    """Yield the matrices that tokens are multiplied by, and whether source tokens are."""
    for parameter in NETWORKS[spec.network].parameters(spec.model):
        name = parameter.name
        if name.endswith("kernel") and len(parameter.shape) == 2:
            of_source = name.startswith("encoder/") or name == "attention/memory_kernel"
            yield parameter, of_source
