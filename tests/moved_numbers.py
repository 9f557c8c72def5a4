"""What a watched training records when `parity bounds` has every number of it moved."""

import numpy as np

from parity import Trace


def ulps(a, b):
    """Return by how many units in the last place each element differs that is not zero.

    Below a power of two a unit is half of that above it.
    """
    there = a != 0
    lower = np.minimum(np.abs(a[there]), np.abs(b[there]))
    return np.abs(a[there] - b[there]) / np.spacing(lower)


def assert_moved(plain, moved, last, model="model", steps=(0,)):
    """Check that weights, outputs and their gradients were moved, each by itself.

    Args:
      plain, moved: folders of the traces of one training.
      last: the module whose output is that of the whole model, and `model` that one's name:
        the two differ by one unit where a number is moved on its way from one to the other.
    """
    plain, moved = Trace(plain), Trace(moved)
    first, other = plain.read(0), moved.read(0)
    for name, array in first.items():
        if name.startswith("batch/") or array.dtype.kind != "f":
            np.testing.assert_array_equal(other[name], array)
        elif name.startswith("initial/"):
            assert set(ulps(array, other[name])) <= {1.0}, name
            assert np.array_equal(other[name], array) == (not array.any()), name
    assert plain.numbers() == moved.numbers()
    for step in steps:
        for rung in ("forward", "activation_gradient"):
            for tensors, expected in ((plain.read(step), set()), (moved.read(step), {1.0})):
                a, b = (tensors[f"{rung}/{name}"] for name in (model, last))
                assert set(ulps(a, b)) - {0.0} == expected, (rung, step)
