"""The resume rung: a training that is saved and resumed goes on as if it had never stopped.

A side's own checkpoint must lead it to the very bits that it computed when it went on. What
the other framework computes from that checkpoint cannot be equal to the bit; there the oracle
takes each step from what the saving side itself had recorded before the checkpoint (weights,
optimizer state, recurrent state), and later from what the resuming side recorded, and the
resuming side must be within rounding of it, as in any single step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.tensors import ONE_STEP, Distance, Mismatch, Place
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.pair_comparison import PairComparison
from parity.twins.compare.verdict import RunVerdict
from parity.twins.compare.whole_runs import first_difference
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import tensor_names

Tensors = Mapping[str, np.ndarray]
Steps = Mapping[int, Tensors]

_ONCE = ("decode/", "evaluate/")  # recorded in the last step of a run only
_OF_REPLICAS = ("batch/sizes", "loss/replicas", "replicas/")


@dataclass(frozen=True)
class Resumed:
    """A run that was resumed from a checkpoint.

    Attributes:
      saver: the label of the side that wrote the checkpoint.
      loader: the label of the side that resumed it.
      step: the first step after the checkpoint.
      went_on: the saver's recorded steps, from `step` - 1 on: those of the run that went on.
      resumed: the loader's recorded steps.
    """

    saver: str
    loader: str
    step: int
    went_on: Steps
    resumed: Steps


class ResumeRung:
    """Compares resumed runs, and adds their distances to a verdict.

    Args:
      spec: what was trained, with the size of the real vocabulary.
      per_epoch: the number of steps of an epoch.
      verdict: what the distances are added to.
    """

    def __init__(self, spec: Spec, per_epoch: int, verdict: RunVerdict):
        self._spec, self._verdict = spec, verdict
        self._names = tensor_names(spec)
        self._expected = OracleTensors(spec, per_epoch, self._names)

    def compare(self, run: Resumed) -> None:
        """Compare a resumed run with the run that went on, and add the first mismatch."""
        found = self._compare(run)
        if run.saver == run.loader:
            self._verdict.add_exact_check("resume", self._sides(run), found)
        else:
            self._verdict.add_check(found)

    def check_saved(self, side: str, step: int, *, exists: bool) -> bool:
        """Return whether a side has written the checkpoint before a step; if not, say so."""
        if exists:
            return True
        sides = side, f"{side} resumed"
        problem = f"no checkpoint whose next step is {step}"
        note = f"{side} numbers its checkpoints otherwise than its steps"
        found = Mismatch(
            sides,
            Place(step, "weight", ()),
            problem=problem,
            within=side,
            check="resume",
            note=note,
        )
        self._verdict.add_exact_check("resume", sides, found)
        return False

    def _compare(self, run: Resumed) -> Mismatch | None:
        steps = sorted(run.resumed)
        due = [step for step in sorted(run.went_on) if step >= run.step]
        if not steps or steps[0] != run.step or steps != due[: len(steps)]:
            seen = f"steps {steps or 'none'}; steps {due} follow the checkpoint"
            problem = f"the resumed run has {seen}"
            return self._found(
                run, Mismatch(self._sides(run), self._begin(run), problem=problem)
            )
        if run.saver == run.loader:
            return self._compare_own(run, steps)
        return self._compare_others(run, steps)

    def _compare_own(self, run: Resumed, steps: list[int]) -> Mismatch | None:
        sides = self._sides(run)
        for step in steps:
            held = {name for name in run.resumed[step] if not name.startswith(_ONCE)}
            names = [name for name in self._names if name in held]
            found = first_difference(run.went_on[step], run.resumed[step], sides, step, names)
            if found is not None:
                return self._found(run, found)
        return None

    def _compare_others(self, run: Resumed, steps: list[int]) -> Mismatch | None:
        sides = self._sides(run)
        before = run.went_on[run.step - 1]
        for step in steps:
            recorded = run.resumed[step]
            batch = [
                name
                for name in self._names
                if name.startswith("batch/") and not name.startswith(_OF_REPLICAS)
            ]
            found = first_difference(recorded, run.went_on[step], sides, step, batch)
            found = found or self._one_step(run, step, before, recorded)
            if found is not None:
                return self._found(run, found)
            before = recorded
        return None

    def _one_step(
        self, run: Resumed, step: int, before: Tensors, recorded: Tensors
    ) -> Mismatch | None:
        """Compare a step with the oracle's, from what was recorded of the step before it."""
        label = f"{run.loader} from {run.saver}"
        known = IntendedDifferences({label: self._verdict.sides[run.loader]})
        one_step = OneStep(self._expected, known)
        one_step.remember({label: before})
        inputs = self._expected.inputs(step, recorded)
        expected = one_step.expected(label, inputs, step, recorded)
        exact = with_replica_losses(expected, recorded, inputs)
        rounding = one_step.measure(label, inputs, recorded, exact)
        pair, sides = PairComparison(self._spec, self._names), (label, ONE_STEP)
        with known.oracle_of(label):
            compared = pair.compare(recorded, exact, sides, step, rounding=rounding)
            found = pair.first(recorded, exact, compared, rounding)
        worst = Distance()
        for distance in compared.of_rungs.values():
            worst.add(distance)
        self._verdict.add_distances(sides, {"resume": worst})
        if found is None:
            return None
        sides = self._sides(run)
        values = dict(zip(sides, found.values.values(), strict=False))
        return replace(found, sides=sides, values=values)

    def _sides(self, run: Resumed) -> tuple[str, str]:
        if run.saver == run.loader:
            return run.saver, f"{run.saver} resumed"
        return run.loader, run.saver

    def _begin(self, run: Resumed) -> Place:
        return Place(run.step, "weight", ())

    def _found(self, run: Resumed, found: Mismatch) -> Mismatch:
        saved = f"the checkpoint that {run.saver} wrote after step {run.step - 1}"
        if run.saver == run.loader:
            note = f"{run.saver} resumed from {saved} does not go on as it did without stopping"
            return replace(found, check="resume", within=run.saver, note=note)
        note = (
            f"{run.loader} resumed from {saved}; what is given for {run.saver} is one step of "
            "the oracle from what it recorded before. One of the two writes or reads "
            "checkpoints in another layout than the other"
        )
        return replace(found, check="resume", note=note)
