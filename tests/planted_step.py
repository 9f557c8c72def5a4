"""Steps of a side that makes a mistake, computed by the oracle, for tests of causes."""

from dataclasses import replace

import numpy as np
from oracle_side import recorded_steps, small_pairs_spec, small_spec

from parity.compare.steps import compare_step
from parity.twins.compare.causes.search import Budget, CauseSearch
from parity.twins.compare.causes.suspects import suspects
from parity.twins.compare.causes.wrong_step import Change, WrongStep
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OneStep
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.rounding_bounds import bounds_of
from parity.twins.oracle.rounding import Rounding
from parity.twins.oracle.training import Oracle, as_float64
from parity.twins.spec.replaceable import replacing
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import tensor_names

PER_EPOCH = 4
OTHERS = ("batch/", "replicas/", "decode/")


def specs() -> dict[str, Spec]:
    """Return small specs that together have every kind of layer and update."""
    large = {"initial_scale": 0.5, "clip_norm": 0.05}
    return {
        "stream": small_spec(**large, optimizer="sgd"),
        "sentences": small_spec(**large, batching="sentences"),
        "one layer": small_spec(**large, num_layers=1, keep=1.0),
        "general": small_pairs_spec(**large, attention="general", bidirectional=True),
        "scaled, fed": small_pairs_spec(
            **large, attention="scaled", input_feeding=True, optimizer="sgd"
        ),
        "bahdanau": small_pairs_spec(**large, cell="gru", attention="bahdanau"),
    }


class Planted:
    """One step of a spec, in which mistakes can be planted.

    Attributes:
      spec: what is trained.
      names: the tensors of a step that the oracle computes.
      case: the step with nothing planted.
    """

    def __init__(self, spec: Spec, step: int = 1, replicas: int = 2):
        """Train up to a step without a mistake."""
        self.spec = spec
        self.expected = OracleTensors(spec, PER_EPOCH, tensor_names(spec))
        self.names = [n for n in tensor_names(spec) if not n.startswith(OTHERS)]
        one_step, recorded = (
            OneStep(self.expected, IntendedDifferences({})),
            recorded_steps(spec, step + 1, replicas),
        )
        if step:
            one_step.remember({"side": recorded[step - 1]})
        inputs = self.expected.inputs(step, recorded[step])
        exact = one_step.expected("side", inputs, step, recorded[step])
        exact = with_replica_losses(exact, recorded[step], inputs)
        start = one_step.start("side", recorded[step])
        state = one_step.state(start, inputs)
        start = start.snapshot, state, start.left
        self.case = WrongStep(
            spec, step, PER_EPOCH, *start, inputs, recorded[step], exact, "", ()
        )

    def suspect(self, name: str):
        """Return the suspect of that name."""
        found = [each for each in suspects(self.case) if each.name == name]
        assert found, f"{name!r} is no suspect here"
        return found[0]

    def with_mistake(self, change: Change) -> WrongStep:
        """Return the case of a side that makes a mistake in this step."""
        case = self.case
        rate = case.rate if change.rate is None else change.rate
        with replacing(change.replacements):
            oracle = Oracle(case.spec, case.snapshot)
            oracle.state = {name: as_float64(part) for name, part in case.state.items()}
            found = oracle.step(case.inputs, rate, case.sizes)
        return self.recording(found | {"batch/learning_rate": np.array(rate)})

    def recording(self, found) -> WrongStep:
        """Return the case of a side that recorded other values in this step."""
        dtype = self.spec.training.dtype
        case = self.case
        computed = {
            name: np.asarray(array, dtype) if not name.startswith("batch/") else array
            for name, array in found.items()
        }
        recorded = dict(case.recorded) | computed
        exact = dict(case.expected) | self.expected.above_gradients(
            case.snapshot, recorded, case.rate
        )
        rounding = Rounding(case.spec, case.snapshot, case.state, case.inputs, recorded, exact)
        names = ["batch/learning_rate", *(n for n in self.names if n in exact)]
        bounds = bounds_of(dtype, rounding)
        every = compare_step(recorded, exact, ("a", "b"), case.step, names, bounds).mismatches
        wrong = tuple(mismatch.place.tensor for mismatch in every)
        return replace(
            case, recorded=recorded, expected=exact, first=(*wrong, "")[0], wrong=wrong
        )

    def confirmed(self, case: WrongStep, seconds: float = 1e9, clock=lambda: 0.0):
        """Return what the search confirms of a case."""
        budget = Budget(seconds, clock)
        search = CauseSearch(case, self.expected, tensor_names(self.spec), budget)
        return search.confirmed(), budget
