"""All sides of a run and the oracle, compared step by step, rung by rung.

A side is compared with the oracle in two ways.

*Free run.* The oracle trains by itself from the same initial weights. In float64 this is the
proof: after hundreds of steps everything must still agree to rounding. A training can be so
unstable that it amplifies even that rounding beyond the bound. Where a free run exceeds the
bound although every rung of every step is right by the rule below, free runs are no longer
judged from there on, and the report says so.

*One step.* The oracle computes each rung of each step anew in float64, from what the side
itself recorded on the rung below: activations and gradients from its weights and recurrent
state before the step, clipping from its gradients, the optimizer's state from its clipped
gradients, weights from its optimizer's state. Differences accumulate neither over steps nor
over rungs, so the bounds stay tight however long the run: a multiple of the rounding error of
that very step. If every step of both sides is the oracle's step, to rounding, and both start
from the same weights, then they are the same training. That free runs drift apart in float32 is
rounding that the training amplifies; it is reported, not judged.

In an isolated run (parity/twins/compare/isolated_run.py) every step is the oracle's own, layer
by layer.

The first step that has a mismatch decides the verdict. Steps after it can be measured, to show
how the difference develops: see parity/compare/growth.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.compare.common_steps import common_steps
from parity.compare.disagreement import find_disagreement
from parity.compare.growth import Growth
from parity.compare.signatures import Evidence
from parity.compare.step_series import History
from parity.compare.steps import StepFound, compare_step
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch
from parity.trace.reader import Trace
from parity.twins.compare.causes.confirm import RunCauses
from parity.twins.compare.decode_rung import DecodeRung
from parity.twins.compare.evaluation import EvaluationRung
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.isolated_run import IsolatedRun
from parity.twins.compare.oracle_steps import OneStep, OracleSteps
from parity.twins.compare.oracle_tensors import OracleTensors, with_replica_losses
from parity.twins.compare.pair_comparison import (
    PairComparison,
    check_replicas,
    in_order_of_loop,
)
from parity.twins.compare.preconditions import (
    batches_of_other_shapes,
    check_recorded,
    check_same_run,
    check_sizes,
)
from parity.twins.compare.rounding_bounds import bounds_of
from parity.twins.compare.step_coverage import StepCoverage
from parity.twins.compare.verdict import RunVerdict
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.decoded import DECODED
from parity.twins.trace.evaluated import evaluated_names
from parity.twins.trace.side import TrainedSide, labels_of, pairs_of

Tensors = Mapping[str, np.ndarray]

Expectations = Mapping[str, Mapping[str, Tensors]]


class RunComparison:
    """Compares the sides of one run with each other and with the oracle.

    Args:
      headers: label -> header of a side's trace; `pairs_of` decides which sides are compared
        with each other.
      after_mismatch: the number of steps to measure after the first that has a mismatch; none
        in an isolated run, where nothing is carried from step to step.
      cause_seconds: how long the search for a confirmed cause may take; 0 for no search.

    Attributes:
      sides: label -> side.
      spec: what was trained, with the size of the real vocabulary.
      per_epoch: the number of steps of an epoch.
      names: the tensors of a step, in the order of computation.
      judges_free_runs: whether free runs are judged, or only measured.
      verdict: what was found so far.

    Raises:
      UsageError: if the sides did not train the same spec on the same text.
    """

    def __init__(
        self,
        headers: Mapping[str, Mapping[str, Any]],
        after_mismatch: int = 0,
        cause_seconds: float = 0.0,
    ):
        self.sides = {label: TrainedSide.from_json(header) for label, header in headers.items()}
        first, *others = headers.items()
        for other in others:
            check_same_run(first, other)
        self.spec = Spec.from_json(first[1]["spec"])
        self.per_epoch = first[1]["batches_per_epoch"]
        isolated = first[1].get("isolated", False)
        dtype = self.spec.training.dtype
        self.names = tensor_names(
            self.spec,
            isolated=isolated,
            asynchronous=not all(side.synchronous for side in self.sides.values()),
        )
        self._order = in_order_of_loop(self.spec, self.names)
        self.judges_free_runs = dtype == "float64" and not isolated
        self._pairs = pairs_of(self.sides)
        self.verdict = RunVerdict(dtype, isolated=isolated, sides=self.sides)
        # the figures show the first pair: both frameworks, where two are compared
        self.verdict.history = History(dtype, list(self.sides), next(iter(self._pairs), None))
        self._expected = OracleTensors(self.spec, self.per_epoch, self.names)
        self._pairwise = PairComparison(self.spec, self.names)
        self._coverage = StepCoverage(
            self.spec, self.per_epoch, self.sides, self.verdict.coverage
        )
        self._decode_rung = DecodeRung(self.spec, self.verdict, self._coverage)
        self._evaluation_rung = EvaluationRung(self.spec, self.verdict)
        self._evaluated = set(evaluated_names(self.spec))
        self._known = IntendedDifferences(self.sides)
        self.verdict.known = self._known.found
        self._oracles = OracleSteps(self._expected, self.sides, self._known)
        self._one_step = self._oracles.one_step
        self._causes = RunCauses(
            self._expected, self.names, self._one_step, self.sides, cause_seconds
        )
        self._isolated: IsolatedRun | None = None
        self._steps_left = self._steps_after = 0 if isolated else after_mismatch
        if isolated:
            self._isolated = IsolatedRun(
                self._expected, self.names, self._pairwise, self.verdict
            )

    @property
    def rounding(self) -> Mapping[str, Rounding]:
        """Return label -> the rounding error of the step that was compared last."""
        return self._one_step.rounding

    def compare(
        self,
        steps: Iterable[Mapping[str, Tensors]],
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        """Compare steps from 0 on, to the last or to the last one to measure after a mismatch.

        Once there is a mismatch, the verdict stands: a NaN in a later step, or a side that
        fails there, ends the comparison, and `verdict.growth` says so.

        Args:
          steps: for each step label -> what that side recorded.
          after_step: called after each.

        Raises:
          UsageError, NumericFailure, SideFailed: for what goes wrong before any mismatch.
        """
        try:
            for step, tensors in enumerate(steps):
                self.step(step, tensors)
                after_step()
                if self.is_done:
                    return
        except (UsageError, NumericFailure, SideFailed) as error:
            if self.verdict.matches:
                raise
            self._end_growth(str(error))
        else:
            self._end_growth("the run has no more steps")

    @property
    def is_done(self) -> bool:
        """Return whether there is a mismatch, and no step after it is left to measure."""
        return not self.verdict.matches and self._steps_left <= 0

    def step(self, step: int, tensors: Mapping[str, Tensors]) -> None:
        """Compare one step; after a mismatch, only measure how large the differences are.

        Args:
          tensors: label -> what that side recorded.

        Raises:
          UsageError: for a side that lacks a tensor, or holds one that its spec does not allow.
          NumericFailure: for a NaN or infinity on any side.
        """
        tensors = {side: tensors[side] for side in self.sides}
        unlike = check_recorded(self.spec, self.sides, tensors, step, self._order) or [
            mismatch
            for group in self._oracles.groups(tensors)
            for mismatch in batches_of_other_shapes(self.spec, group, step)
        ]
        if unlike:
            self._end_at(step, unlike)
            return
        inputs = self._oracles.inputs(step, tensors)
        if self._isolated is not None:
            self._isolated.step(step, tensors, next(iter(inputs.values())), self._pairs)
            self._coverage.step(step, tensors, inputs, self.verdict.oracle)
            return
        expected = self._oracles.take(step, tensors, inputs)
        if self.verdict.matches:
            self._judge(step, tensors, inputs, expected)
        else:
            self._steps_left -= 1
        if self._steps_after and not self.verdict.matches:
            self._measure_growth(step, tensors, expected)
        self._add_to_causes(step, tensors, inputs, expected[ONE_STEP])
        self._one_step.remember(tensors)
        for side, recorded in tensors.items():
            self.verdict.add_update(side, step, recorded)

    def _end_at(self, step: int, mismatches: list[Mismatch]) -> None:
        """End the comparison at a step of which nothing else can be compared."""
        if self.verdict.matches:
            self.verdict.mismatches, self.verdict.steps = mismatches, step + 1
        else:
            first = mismatches[0]
            self._end_growth(f"step {step}: {first.place.tensor} has {first.problem}")
        self._steps_left = 0

    def _judge(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        expected: Expectations,
    ) -> None:
        """Compare a step rung by rung, and add what is found to the verdict.

        Args:
          inputs: label -> the inputs of that side's step.
          expected: `ORACLE` or `ONE_STEP` -> label -> what the oracle expects of that side.
        """
        free = self._compare_free_runs(step, tensors, expected[ORACLE])
        shares_of_free = self._pairwise.take_shares()
        found = self._compare_one_steps(step, tensors, inputs, expected[ONE_STEP])
        if any(name in recorded for recorded in tensors.values() for name in DECODED):
            found += self._decode_rung.compare(step, tensors, self._judged_pairs())
        if any(not self._evaluated.isdisjoint(recorded) for recorded in tensors.values()):
            found += self._evaluation_rung.compare(step, tensors, self._judged_pairs())
        self._conclude(step, free, found)
        self.verdict.history.add_shares(self._pairwise.take_shares())
        if self.judges_free_runs:  # they may have stopped being judged with this very step
            self.verdict.history.add_shares(shares_of_free)
        self.verdict.oracle = expected[ORACLE]
        self._coverage.step(step, tensors, inputs, self.verdict.oracle)
        # what was evaluated after the step is no part of what the oracle's step computes
        if not self.verdict.matches and not self.verdict.mismatches[0].check:
            self.verdict.disagreement = find_disagreement(
                self.verdict.mismatches, self.sides, self.verdict.dtype, tensors, expected
            )
            self.verdict.evidence = gather_evidence(
                self.verdict, self.spec, self.names, tensors, inputs, self._one_step, step
            )

    def _measure_growth(
        self, step: int, tensors: Mapping[str, Tensors], expected: Expectations
    ) -> None:
        """Measure all distances of the first wrong step, or of one after it."""
        if self.verdict.growth is None:
            self.verdict.growth = Growth(self.verdict.mismatches[0].place.tensor)
        losses = {side: float(each["loss/global"]) for side, each in tensors.items()}
        first = next(iter(tensors))
        losses["oracle"] = float(expected[ORACLE][first]["loss/global"])
        self.verdict.history.add_losses_after(step, losses)
        compared = {(a, b): (tensors[a], tensors[b]) for a, b in self._pairs}
        for other, of_side in expected.items():
            compared |= {(side, other): (tensors[side], of_side[side]) for side in tensors}
        pairwise = PairComparison(self.spec, self.names)
        self.verdict.growth.add(
            step,
            {
                pair: pairwise.compare(a, b, pair, step, judge=False).distances
                for pair, (a, b) in compared.items()
            },
        )

    def _end_growth(self, reason: str) -> None:
        if self.verdict.growth is not None and not self.is_done:
            self.verdict.growth.ended = reason

    def _add_to_causes(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        exact: Mapping[str, Tensors],
    ) -> None:
        """Look for the causes of the first mismatch, and drop those that do not hold."""
        verdict = self.verdict
        if not verdict.matches and not (verdict.evidence and verdict.departing()):
            return
        evidence = None if verdict.matches else verdict.evidence
        verdict.confirmed = self._causes.add(step, tensors, inputs, exact, evidence)

    def _judged_pairs(self) -> list[tuple[str, str]]:
        """Return the sides that are compared with each other and must be equal to rounding."""
        if not self.judges_free_runs:
            return []
        return [pair for pair in self._pairs if self._known.comparable(*pair)]

    def _compare_free_runs(
        self, step: int, tensors: Mapping[str, Tensors], expected: Mapping[str, Tensors]
    ) -> list[Mismatch | None]:
        judge, judged = self.judges_free_runs, self._judged_pairs()
        distances: Mapping[str, Distance] = {}
        first = []
        for place, (a, b) in enumerate(self._pairs):
            both = tensors[a], tensors[b], (a, b)
            found, mismatch = self._compare(*both, step, judge=(a, b) in judged)
            first.append(mismatch)
            if not place:
                distances = found.distances
        first += [
            self._compare(each, expected[side], (side, ORACLE), step, judge=judge)[1]
            for side, each in tensors.items()
        ]
        self.verdict.history.add(step, tensors, expected, distances)
        return first

    def _compare(
        self,
        a: Tensors,
        b: Tensors,
        sides: tuple[str, str],
        step: int,
        *,
        judge: bool = True,
        rounding: Rounding | None = None,
    ) -> tuple[StepFound, Mismatch | None]:
        """Compare a pair, and return what was found and the mismatch that is computed first."""
        known = self.verdict.pairs.get(sides)
        found = self._pairwise.compare(a, b, sides, step, known, judge=judge, rounding=rounding)
        self.verdict.add_distances(sides, found.of_rungs)
        return found, self._pairwise.first(a, b, found, rounding)

    def _compare_one_steps(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        expected: Mapping[str, Tensors],
    ) -> list[Mismatch | None]:
        found = []
        for side, recorded in tensors.items():
            replicas = check_replicas(recorded, side, step, self.names)
            read, mismatch = self._one_step.check_read_weights(side, recorded, step)
            for held in (replicas.of_rungs, {"replicas": read}):
                self.verdict.add_distances((side, ORACLE), held)
            found += [replicas.first, mismatch]
        self._one_step.forget_rounding()
        for side, recorded in tensors.items():
            rounding = self._one_step.measure(side, inputs[side], recorded, expected[side])
            with self._known.oracle_of(side):
                sides = side, ONE_STEP
                found.append(
                    self._compare(recorded, expected[side], sides, step, rounding=rounding)[1]
                )
        if not any(rounding.runs for rounding in self.rounding.values()):
            self.verdict.unmeasured.append(step)
        return found

    def _conclude(
        self, step: int, free: list[Mismatch | None], found: list[Mismatch | None]
    ) -> None:
        """Add a step's mismatches to the verdict, unless only amplified rounding is the cause.

        Args:
          free: the mismatches of the free runs.
          found: all other mismatches.
        """
        departed = [mismatch for mismatch in free if mismatch and mismatch.rung != "batch"]
        if departed and not any(found) and len(departed) == sum(map(bool, free)):
            self._stop_judging_free_runs(departed)
        else:
            found = free + found
        self.verdict.mismatches = sorted(
            (mismatch for mismatch in found if mismatch),
            key=lambda mismatch: self._order.index(mismatch.place.tensor),
        )
        self.verdict.steps = step + 1

    def _stop_judging_free_runs(self, departed: list[Mismatch]) -> None:
        self.judges_free_runs = False
        self.verdict.amplified = min(
            departed, key=lambda mismatch: self.names.index(mismatch.place.tensor)
        )
        for (_, b), rungs_of_pair in self.verdict.pairs.items():
            for rung, distance in rungs_of_pair.items():
                if b != ONE_STEP and rung not in ("batch", "replicas"):
                    distance.used = None


def compare_traces(
    traces: Sequence[Trace], after_mismatch: int = 0, cause_seconds: float = 0.0
) -> RunVerdict:
    """Compare recorded traces with each other and the oracle, up to the first mismatch.

    Args:
      after_mismatch: the number of steps to measure after the first that has a mismatch.
      cause_seconds: how long the search for a confirmed cause may take; 0 for no search.

    Raises:
      UsageError: if they are not of the same run, or damaged.
      NumericFailure: for a NaN or infinity.
    """
    labels = labels_of(
        [TrainedSide.from_json(t.header) for t in traces], [t.folder for t in traces]
    )
    by_label = dict(zip(labels, traces, strict=True))
    headers = {label: trace.header for label, trace in by_label.items()}
    steps, cut = common_steps(by_label)
    for label, trace in by_label.items():
        check_sizes(label, trace, steps[0])
    comparison = RunComparison(headers, after_mismatch, cause_seconds)
    comparison.verdict.cut = cut
    comparison.compare(
        {label: trace.read(step) for label, trace in by_label.items()}
        for step in range(len(steps))
    )
    return comparison.verdict


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
        both = [name for name in names if name in recorded and name in expected]
        bounds = bounds_of(spec.training.dtype, rounding)
        differing = compare_step(recorded, expected, ("", ""), step, both, bounds).mismatches
        wrong = [mismatch.place.tensor for mismatch in differing]
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
            traits_of(spec, verdict.sides[side]),
        )
    return found


def traits_of(spec: Spec, side: TrainedSide) -> frozenset[str]:
    """Return what a run has of which a mistake may need one, as signatures.py names it."""
    model, network = spec.model, NETWORKS[spec.network]
    has = {
        spec.training.optimizer: True,
        getattr(model, "cell", "lstm"): True,
        "attention": hasattr(model, "attention"),
        "bidirectional": getattr(model, "bidirectional", False),
        "dropout": model.keep < 1,
        "carried state": bool(network.state(model)),
        "micro-batches": side.micro_batches > 1,
    }
    return frozenset(trait for trait, given in has.items() if given)
