"""One step of all pairs, measured and not judged."""

from collections.abc import Mapping

import numpy as np

from parity.compare.growth import Growth
from parity.compare.tensors import Distance
from parity.twins.compare.two_sides import Pairs
from parity.twins.compare.verdict import RunVerdict
from parity.twins.spec.spec import Spec

Tensors = Mapping[str, np.ndarray]


def measure_step(
    growth: Growth,
    spec: Spec,
    names: list[str],
    step: int,
    compared: Mapping[tuple[str, str], tuple[Tensors, Tensors]],
) -> None:
    """Measure how far pairs are apart in a step, and add it to the growth of a difference.

    Args:
      growth: what the distances are added to.
      spec: what was trained.
      names: the tensors of a step, in the order of computation.
      step: the number of the step.
      compared: (label, label) -> the tensors of both.
    """
    measured = RunVerdict(spec.training.dtype)
    pairwise = Pairs(spec, names, measured)
    of_tensor: dict[tuple[str, str], float] = {}
    for pair, (a, b) in compared.items():
        seen: dict[str, Distance] = {}
        pairwise.compare(a, b, pair, step, judge=False, seen=seen)
        if growth.tensor in seen and seen[growth.tensor].where is not None:
            of_tensor[pair] = seen[growth.tensor].relative
    of_rungs = {
        pair: {rung: distance.relative for rung, distance in rungs.items()}
        for pair, rungs in measured.pairs.items()
    }
    growth.add(step, of_tensor, of_rungs)
