"""The witness rung: a training that shares less with the sides than the oracle does.

Its batches, learning rate and state must be those of the sides, to the bit. The oracle takes
each of its steps from what it recorded before, and it must be within rounding of that, as a
side must. Where every side matches the oracle and the witness does not, the mistake is in what
the sides and the oracle share, or it is the witness's own.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from parity.compare.findings import Finding, find_in_exact_check
from parity.compare.tensors import ONE_STEP
from parity.trace.rungs import WITNESS
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors
from parity.twins.compare.pair_comparison import PairComparison
from parity.twins.compare.whole_runs import first_difference
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import tensor_names

Tensors = Mapping[str, np.ndarray]

_RECORDED = (
    "batch/",
    "loss/global",
    "gradient",
    "clipped_gradient/",
    "optimizer/",
    "weight/",
)


class WitnessRung:
    """Compares the steps of a witness, up to the first mismatch.

    Args:
      label: the witness's label.
      side: the label of the side whose batches it must have.
      spec: what was trained, with the size of the real vocabulary.
      per_epoch: the number of steps of an epoch.
    """

    def __init__(self, label: str, side: str, spec: Spec, per_epoch: int):
        self.label, self._side = label, side
        state = tuple(f"forward/{name}" for name in NETWORKS[spec.network].state(spec.model))
        names = [name for name in tensor_names(spec) if name.startswith((*_RECORDED, *state))]
        self._batch = [name for name in names if name.startswith("batch/")]
        self._batch.remove("batch/sizes")  # of its one replica
        self._expected = OracleTensors(spec, per_epoch, names)
        self._one_step = OneStep(self._expected, IntendedDifferences({}))
        self._pair = PairComparison(spec, names)
        self._note = (
            f"all sides match the oracle, and {label} does not: the mistake is in what they "
            f"have in common, or it is {label}'s own"
        )
        self.findings: list[Finding] = []

    def add(self, step: int, tensors: Mapping[str, Tensors]) -> None:
        """Compare a step.

        Args:
          tensors: label -> what that one recorded of it.
        """
        if any(finding.mismatches for finding in self.findings):
            return
        sides = self._side, self.label
        side, witness = (tensors[label] for label in sides)
        other = first_difference(side, witness, sides, step, self._batch)
        if other is not None:
            other = replace(other, check=WITNESS, note=self._note)
        self.findings.append(find_in_exact_check(WITNESS, sides, other))
        if other is None:
            self.findings.append(self._one_step_of(step, witness))

    def _one_step_of(self, step: int, recorded: Tensors) -> Finding:
        sides = self.label, ONE_STEP
        inputs = self._expected.inputs(step, recorded)
        exact = self._one_step.expected(self.label, inputs, step, recorded)
        self._one_step.rounding = {}
        rounding = self._one_step.measure(self.label, inputs, recorded, exact)
        compared = self._pair.compare(recorded, exact, sides, step, rounding=rounding)
        self._one_step.remember({self.label: recorded})
        wrong = (replace(e, check=WITNESS, note=self._note) for e in compared.mismatches)
        return Finding(sides, {WITNESS: compared.worst}, tuple(wrong))
