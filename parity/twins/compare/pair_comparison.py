"""Compare two sides, or a side with the oracle, on every rung of a training step."""

from collections.abc import Mapping

import numpy as np

from parity.compare.growth import Growth
from parity.compare.tensors import Distance, Mismatch
from parity.twins.compare.steps import compare_step, first_in_loop
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec

Tensors = Mapping[str, np.ndarray]


class PairComparison:
    """Compares pairs and adds their distances to a verdict.

    Args:
      spec: what was trained.
      names: the tensors of a step, in the order of computation.
      verdict: what the distances are added to.
    """

    def __init__(self, spec: Spec, names: list[str], verdict: RunVerdict):
        self._spec, self._verdict = spec, verdict
        self._batch = [name for name in names if name.startswith(("batch/", "schedule/"))]
        others = ("batch/", "schedule/", "read/", "replicas/", "decode/", "evaluate/")
        self._rest = [name for name in names if not name.startswith(others)]
        self._shares: dict[str, float] = {}

    def take_shares(self) -> dict[str, float]:
        """Return tensor -> the largest share of its bound in any pair since the last call."""
        taken, self._shares = self._shares, {}
        return taken

    def compare(
        self,
        a: Tensors,
        b: Tensors,
        sides: tuple[str, str],
        step: int,
        *,
        judge: bool = True,
        seen: dict[str, Distance] | None = None,
        every: list[Mismatch] | None = None,
        rounding: Rounding | None = None,
    ) -> Mismatch | None:
        """Compare one step of a pair, and return the mismatch that is computed first.

        Args:
          judge: whether to judge more than the batch, which is always exact.
          seen, every, rounding: as for `compare_step`.
        """
        batch, rest = list(self._batch), list(self._rest)
        seen = {} if seen is None else seen
        if len({RecordedUpdate.of(each) is None for each in (a, b)}) > 1:
            # an asynchronous side with one worker, and one that is synchronous
            batch = [name for name in batch if not name.startswith("schedule/")]
        if _different_replicas(a, b):
            batch.remove("batch/sizes")
            rest.remove("loss/replicas")
        dtype = self._spec.training.dtype
        distances, first = compare_step(a, b, sides, step, batch, dtype, seen=seen, every=every)
        worst = self._verdict.pairs.setdefault(sides, {})
        more, second = compare_step(
            a,
            b,
            sides,
            step,
            rest,
            dtype,
            judge=judge,
            known=worst,
            seen=seen,
            every=every,
            rounding=rounding,
        )
        for rung, distance in (distances | more).items():
            worst.setdefault(rung, Distance()).add(distance)
        for name, distance in seen.items():
            if distance.used is not None:
                self._shares[name] = max(self._shares.get(name, 0.0), distance.used)
        if second is not None:
            loop = NETWORKS[self._spec.network].loop(self._spec.model)
            names = [f"forward/{name}" for name in loop]
            second = first_in_loop(a, b, second, names, dtype, rounding)
        return first or second


def _different_replicas(a: Tensors, b: Tensors) -> bool:
    return "batch/sizes" in a and len(a["batch/sizes"]) != len(b["batch/sizes"])


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
    pairwise = PairComparison(spec, names, measured)
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
