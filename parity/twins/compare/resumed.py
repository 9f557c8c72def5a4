"""The resume rung: a training that is saved and resumed goes on as if it had never stopped.

A side's own checkpoint must lead it to the very bits that it computed when it went on. What
the other framework computes from that checkpoint cannot be equal to the bit; there the oracle
takes each step from what the saving side itself had recorded before the checkpoint (weights,
optimizer state, recurrent state), and later from what the resuming side recorded, and the
resuming side must be within rounding of it, as in any single step.

In float64, what the other framework resumes is moved before: training in a few steps reaches
no cell state beyond 3, no token that is next to impossible and no long embedding, so that a
side which cuts them would match. In float32 the measured bound does not hold there: of two
right sides a gradient of the projection used 1.18 of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import filter as matching

import numpy as np

from parity.base.text import counted
from parity.compare.findings import Finding, find_in_exact_check
from parity.compare.tensors import ONE_STEP, Mismatch, Place
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.pair_comparison import PairComparison
from parity.twins.compare.step_coverage import limit_facts
from parity.twins.compare.whole_runs import first_difference
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import GATES
from parity.twins.spec.parameters import snapshot_names
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.side import TrainedSide

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
      saved: the weights and the optimizer's state in the checkpoint; another framework resumes
        them `beyond_limits`.
    """

    saver: str
    loader: str
    step: int
    went_on: Steps
    resumed: Steps
    saved: Tensors


def beyond_limits(snapshot: Tensors) -> dict[str, np.ndarray]:
    """Return weights and state with which a step reaches values that a mistake may cut.

    Those of single precision are returned as they are.

    Every embedding is longer than 1, the first unit of each LSTM adds about 1 to its cell state
    at every token, and all targets but the first id have a loss of about 100 nats.

    Args:
      snapshot: "weight/...", "optimizer/..." -> array.
    """
    moved = dict(snapshot)
    for name in matching(snapshot, "weight/*"):
        if snapshot[name].dtype != np.float64:
            continue
        array = snapshot[name].copy()
        if name.endswith("/table"):
            array[:, 0] += 2
        elif name == "weight/softmax/bias":
            array[1:] -= 100
        elif "/lstm_" in name and name.endswith("/bias"):
            array.reshape(GATES["lstm"], -1)[:, 0] += 10
        moved[name] = array
    return moved


def find_unsaved(side: str, step: int) -> Finding:
    """Return the finding about a side that has not written the checkpoint before a step."""
    sides = side, f"{side} resumed"
    found = Mismatch(
        sides,
        Place(step, "weight", ()),
        problem=f"no checkpoint whose next step is {step}",
        within=side,
        check="resume",
        note=f"{side}: the checkpoint's step number is not the step that was trained",
    )
    return find_in_exact_check("resume", sides, found)


class ResumeRung:
    """Compares resumed runs.

    Args:
      spec: what was trained, with the size of the real vocabulary.
      per_epoch: the number of steps of an epoch.
      sides: label -> side.
    """

    def __init__(self, spec: Spec, per_epoch: int, sides: Mapping[str, TrainedSide]):
        self._spec, self._sides_of_run = spec, sides
        self._names = tensor_names(spec)
        self._state = NETWORKS[spec.network].state(spec.model)
        self._expected = OracleTensors(spec, per_epoch, self._names)

    def compare(self, run: Resumed) -> Finding:
        """Compare a resumed run with the run that went on, up to the first mismatch."""
        steps = sorted(run.resumed)
        due = [step for step in sorted(run.went_on) if step >= run.step]
        if not steps or steps[0] != run.step or steps != due[: len(steps)]:
            seen = f"steps {steps or 'none'}; steps {due} follow the checkpoint"
            problem = f"the resumed run has {seen}"
            place = Place(run.step, "weight", ())
            wrong = self._found(run, Mismatch(self._sides(run), place, problem=problem))
            return find_in_exact_check("resume", self._sides(run), wrong)
        own = run.saver == run.loader
        found = (self._compare_saved(run) if own else None) or self._compare_loaded(run)
        if found is None and own:
            found = self._compare_own(run, steps)
        if found is not None or own:
            return find_in_exact_check("resume", self._sides(run), found)
        return self._compare_others(run, steps)

    def _compare_saved(self, run: Resumed) -> Mismatch | None:
        before, step = run.went_on[run.step - 1], run.step - 1
        sides, names = (run.saver, f"{run.saver} saved"), snapshot_names(self._spec)
        found = first_difference(before, run.saved, sides, step, names)
        note = f"the checkpoint that {run.saver} wrote after step {step} holds other values"
        return found and replace(found, check="resume", within=run.saver, note=note)

    def _compare_loaded(self, run: Resumed) -> Mismatch | None:
        """Compare what the resumed run starts from with what it was given, to the bit."""
        held = dict(run.saved if run.saver == run.loader else beyond_limits(run.saved))
        first, before = run.resumed[run.step], run.went_on[run.step - 1]
        names = [*snapshot_names(self._spec)]
        if first["batch/carry"]:
            state = [f"forward/{each}" for each in self._state]
            names += state
            held |= {name: before[name] for name in state}
        started = {n: first[f"initial/{n}"] for n in names if f"initial/{n}" in first}
        sides = "the checkpoint", f"{run.loader} resumed"
        found = first_difference(held, started, sides, run.step, names)
        if found is None:
            return None
        tensor = found.place.tensor
        if tensor in started:
            what = self._stands_there(tensor, started[tensor], held)
            found = replace(found, made=f"{sides[1]} has {what} there" if what else found.made)
        equal = [n for n in names if n in started and np.array_equal(held[n], started[n])]
        count = len(names) - len(equal)
        note = (
            f"{run.loader} does not start from what {_checkpoint(run)} holds: "
            f"{counted(count, 'tensor')} of {len(names)} differ{'s' if count == 1 else ''}"
        )
        if run.saver == run.loader:
            note += "; what is in the file is right"
        return replace(found, check="resume", within=run.loader, note=note)

    def _stands_there(self, tensor: str, wrong: np.ndarray, held: Tensors) -> str:
        """Return what else of the checkpoint a wrong tensor is, or its initial value; or ""."""
        for name, array in held.items() if wrong.any() else []:
            if name != tensor and np.array_equal(array, wrong):
                return name
        initial = initial_snapshot(self._spec).get(tensor)
        is_initial = initial is not None and np.array_equal(initial, wrong)
        return "the initial value" if is_initial else ""

    def _compare_own(self, run: Resumed, steps: list[int]) -> Mismatch | None:
        sides = self._sides(run)
        for step in steps:
            held = {name for name in run.resumed[step] if not name.startswith(_ONCE)}
            names = [name for name in self._names if name in held]
            found = first_difference(run.went_on[step], run.resumed[step], sides, step, names)
            if found is not None:
                return self._found(run, found)
        return None

    def _compare_others(self, run: Resumed, steps: list[int]) -> Finding:
        sides = self._sides(run)
        before: Tensors = {**run.went_on[run.step - 1], **beyond_limits(run.saved)}
        found = Finding((f"{run.loader} from {run.saver}", ONE_STEP))
        for step in steps:
            recorded = run.resumed[step]
            batch = [
                name
                for name in self._names
                if name.startswith("batch/") and not name.startswith(_OF_REPLICAS)
            ]
            other = first_difference(recorded, run.went_on[step], sides, step, batch)
            if other is not None:
                return found + Finding(found.sides, mismatches=(self._found(run, other),))
            found += self._one_step(run, step, before, recorded)
            if found.mismatches:
                break
            before = recorded
        return found

    def _one_step(self, run: Resumed, step: int, before: Tensors, recorded: Tensors) -> Finding:
        """Compare a step with the oracle's, from what was recorded of the step before it."""
        label = f"{run.loader} from {run.saver}"
        known = IntendedDifferences({label: self._sides_of_run[run.loader]})
        one_step = OneStep(self._expected, known)
        one_step.remember({label: before})
        inputs = self._expected.inputs(step, recorded)
        expected = one_step.expected(label, inputs, step, recorded)
        exact = with_replica_losses(expected, recorded, inputs)
        rounding = one_step.measure(label, inputs, recorded, exact)
        pair, sides = PairComparison(self._spec, self._names), (label, ONE_STEP)
        with known.oracle_of(label):
            compared = pair.compare(recorded, exact, sides, step, rounding=rounding)
        named, wrong = (run.loader, ONE_STEP), []
        for each in compared.mismatches:
            values = dict(zip(named, each.values.values(), strict=False))
            wrong.append(self._found(run, replace(each, sides=named, values=values)))
        rungs = {"resume": compared.worst}
        return Finding(sides, rungs, tuple(wrong), facts=limit_facts(exact))

    def _sides(self, run: Resumed) -> tuple[str, str]:
        if run.saver == run.loader:
            return run.saver, f"{run.saver} resumed"
        return run.loader, run.saver

    def _found(self, run: Resumed, found: Mismatch) -> Mismatch:
        saved = _checkpoint(run)
        if run.saver == run.loader:
            note = f"{run.saver} resumed from {saved} does not go on as it did without stopping"
            return replace(found, check="resume", within=run.saver, note=note)
        after = counted(found.place.step - run.step + 1, "step")
        moved, how = "", "it loads the checkpoint wrongly"
        if self._spec.training.dtype == "float64":
            moved = " (its weights made large by this check)"
            how += ", or computes large values wrongly"
        note = f"{run.loader}, resumed from {saved}{moved}, differs {after} after it: {how}"
        return replace(found, check="resume", note=note)


def _checkpoint(run: Resumed) -> str:
    return f"the checkpoint that {run.saver} wrote after step {run.step - 1}"
