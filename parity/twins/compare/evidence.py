"""What a side recorded of the first wrong tensor: the evidence for the cause of a mismatch."""

from collections.abc import Mapping

import numpy as np

from parity.compare.signatures import Evidence
from parity.twins.compare.expected_by_oracle import with_replica_losses
from parity.twins.compare.one_step import OneStep
from parity.twins.compare.steps import compare_step
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs

Tensors = Mapping[str, np.ndarray]


def gather_evidence(
    verdict: RunVerdict,
    spec: Spec,
    names: list[str],
    tensors: Mapping[str, Tensors],
    inputs: Mapping[str, StepInputs],
    one_step: OneStep,
    step: int,
) -> dict[str, Evidence]:
    """Return label -> evidence; see parity/compare/signatures.py for its use.

    Args:
      verdict: holds the mismatches of the step.
      names: the tensors of a step, in the order of computation.
      tensors: label -> what that side recorded.
      inputs: label -> the inputs of that side's step.
      one_step: computes what the oracle expects, from what a side recorded before.
    """
    first, departing = verdict.mismatches[0].place.tensor, verdict.departing()
    axes = NETWORKS[spec.network].activations(spec.model)
    on_time = axes.get(first.removeprefix("forward/"), ())[1:2]
    lengths = NETWORKS[spec.network].lengths.get(str(*on_time))
    found = {}
    for side in departing or list(tensors)[:2]:
        recorded = tensors[side]
        own = inputs[side]
        expected: Tensors = one_step.expected(side, own, step, recorded)
        rounding = None
        if departing:
            expected = with_replica_losses(expected, recorded, own)
            rounding = one_step.rounding[side]
        else:
            expected = tensors[next(other for other in tensors if other != side)]
        dtype = spec.training.dtype
        wrong = [
            name
            for name in names
            if name in recorded
            and name in expected
            and _differs(recorded, expected, step, name, dtype, rounding)
        ]
        wrong += [n for n in recorded if n.startswith(("replicas/", "read/")) and n == first]
        found[side] = Evidence(
            step,
            first,
            recorded.get(first),
            expected.get(first),
            tuple(wrong),
            tuple(recorded["batch/sizes"].tolist()),
            own.batch[lengths] if lengths else None,
            spec.network,
            verdict.sides[side].strategy,
        )
    return found


def _differs(
    recorded: Tensors,
    expected: Tensors,
    step: int,
    name: str,
    dtype: str,
    rounding: Rounding | None,
) -> bool:
    sides = ("", "")
    found = compare_step(recorded, expected, sides, step, [name], dtype, rounding=rounding)
    return found[1] is not None
