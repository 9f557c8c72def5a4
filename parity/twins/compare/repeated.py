"""The repeat rung: a second run of the same command computes the same bits."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from parity.compare.tensors import Mismatch
from parity.twins.compare.bits import first_difference

Tensors = Mapping[str, np.ndarray]


def repeated(side: str) -> str:
    """Return the label of a side's second run."""
    return f"{side} repeated"


def compare_repeated(
    side: str, step: int, first: Tensors, second: Tensors, names: Iterable[str]
) -> Mismatch | None:
    """Compare one step of two runs of one side; return the first tensor that differs.

    Args:
      side: the label of the side.
      first, second: the tensors that the two runs recorded.
      names: the tensors of a step, in the order of computation.
    """
    held = [name for name in names if name in first or name in second]
    found = first_difference(first, second, (side, repeated(side)), step, held)
    if found is None:
        return None
    note = (
        f"these are two runs of one command of {side}: something in it depends on time, on "
        "chance, or on the order in which threads finish"
    )
    return replace(found, within=side, check="repeat", note=note)
