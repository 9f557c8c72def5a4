"""All sides of a run and the oracle, compared step by step, rung by rung.

A side is compared with the oracle in two ways.

*Free run*, in float64. The oracle trains by itself from the same initial weights. This is the
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
from the same weights, then they are the same training. That two sides drift apart in float32 is
rounding that the training amplifies; it is reported, not judged. How far they drift from the
oracle's own training would say no more, for a third step to compute beside those of two sides.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.compare.coverage import join_facts
from parity.compare.explanation import Explanation
from parity.compare.findings import Finding, join_findings
from parity.compare.relation import ends_of_rows, explanations, rounded
from parity.compare.step_comparison import StepComparison, add_losses_after, common_steps
from parity.compare.step_series import History
from parity.compare.steps import compare_step
from parity.compare.tensors import ONE_STEP, ORACLE, Distance, Mismatch
from parity.trace.reader import Trace
from parity.twins.compare.causes.confirm import RunCauses
from parity.twins.compare.causes.wrong_step import Confirmed
from parity.twins.compare.decoded_answers import DecodedFinding, compare_searches
from parity.twins.compare.disagreement import departing_sides, find_disagreement
from parity.twins.compare.evaluation import EvaluationRung
from parity.twins.compare.intended_differences import IntendedDifferences
from parity.twins.compare.oracle_steps import OracleSteps
from parity.twins.compare.oracle_tensors import OracleTensors
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
from parity.twins.compare.step_coverage import StepCoverage, staleness_fact
from parity.twins.compare.tensor_axes import axes_of, lengths_of, numbers_of
from parity.twins.compare.verdict import Evidence, RunVerdict, explained
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.oracle.rounding import Rounding
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.decoded import DECODED
from parity.twins.trace.evaluated import evaluated_names
from parity.twins.trace.side import TrainedSide, labels_of, pairs_of

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Step:
    """One step of all sides, and what the oracle expects of it.

    Attributes:
      number: the step's number.
      tensors: label -> what that side recorded.
      inputs: label -> the inputs of that side's step.
      expected: `ONE_STEP`, and of free runs `ORACLE` -> label -> what the oracle expects of
        that side.
    """

    number: int
    tensors: Mapping[str, Tensors]
    inputs: Mapping[str, StepInputs]
    expected: Mapping[str, Mapping[str, Tensors]]


class RunComparison(StepComparison):
    """Compares the sides of one run with each other and with the oracle.

    Args:
      headers: label -> header of a side's trace; `pairs_of` decides which sides are compared
        with each other.
      after_mismatch: the number of steps to measure after the first that has a mismatch.
      cause_seconds: how long the search for a confirmed cause may take; 0 for no search.

    Attributes:
      sides: label -> side.
      spec: what was trained, with the size of the real vocabulary.
      per_epoch: the number of steps of an epoch.
      names: the tensors of a step, in the order of computation.
      judges_free_runs: whether free runs are judged, or only measured.

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
        self._sources = {label: h.get("sources", {}) for label, h in headers.items()}
        first, *others = headers.items()
        for other in others:
            check_same_run(first, other)
        self.spec = Spec.from_json(first[1]["spec"])
        self.per_epoch = first[1]["batches_per_epoch"]
        super().__init__(after_mismatch)
        dtype = self.spec.training.dtype
        self.names = tensor_names(
            self.spec,
            asynchronous=not all(side.synchronous for side in self.sides.values()),
        )
        self._order = in_order_of_loop(self.spec, self.names)
        self.judges_free_runs = dtype == "float64"
        self._pairs = pairs_of(self.sides)
        # the figures show the first pair: both frameworks, where two are compared
        self._history = History(dtype, next(iter(self._pairs), None))
        self._expected = OracleTensors(self.spec, self.per_epoch, self.names)
        self._pairwise = PairComparison(self.spec, self.names)
        self._coverage = StepCoverage(self.spec, self.per_epoch, self.sides)
        self._evaluated = set(evaluated_names(self.spec))
        self._known = IntendedDifferences(self.sides)
        # what a side does on purpose is told beside the exact training, in both precisions
        free_runs = self.judges_free_runs or bool(self._known.found)
        self._oracles = OracleSteps(
            self._expected, self.sides, self._known, free_runs=free_runs
        )
        self._one_step = self._oracles.one_step
        self._cause_seconds = cause_seconds
        self._causes = RunCauses(
            self._expected, self.names, self._one_step, self.sides, cause_seconds
        )
        self._decoded: list[DecodedFinding] = []
        self._staleness: dict[str, Counter[int]] = {}
        self._unmeasured: list[int] = []
        self._of_mismatch: dict[str, Any] = {}  # fields of a verdict, in the first wrong step
        self._oracle: Mapping[str, Tensors] = {}
        self._amplified: Mismatch | None = None

    @property
    def verdict(self) -> RunVerdict:
        """Return the verdict on the steps so far."""
        return RunVerdict(
            self.spec.training.dtype,
            join_findings(self.worst, []),
            self.mismatches,
            oracle=self._oracle,
            growth=self.growth,
            steps=self.steps,
            history=self._history,
            sides=self.sides,
            sources=self._sources,
            amplified=self._amplified,
            ties=tuple(tie for each in self._decoded for tie in each.ties),
            coverage=join_facts(
                self._coverage.facts,
                [staleness_fact(self.sides, self._staleness)],
                *(found.facts for found in self._decoded),
            ),
            staleness=self._staleness,
            known=self._known.found,
            unmeasured=self._unmeasured,
            **self._of_mismatch,
        )

    @property
    def rounding(self) -> Mapping[str, Rounding]:
        """Return label -> the rounding error of the step that was compared last."""
        return self._one_step.rounding

    def _step(self, step: int, tensors: Mapping[str, Tensors], *, judge: bool) -> None:
        tensors = {side: tensors[side] for side in self.sides}
        unlike = check_recorded(self.spec, self.sides, tensors, step, self._order) or [
            mismatch
            for group in self._oracles.groups(tensors)
            for mismatch in batches_of_other_shapes(self.spec, group, step)
        ]
        if unlike:
            self._end_at(step, unlike, judge=judge)
            return
        inputs = self._oracles.inputs(step, tensors)
        now = _Step(step, tensors, inputs, self._oracles.take(step, tensors, inputs))
        if judge:
            self._judge(now)
        self._add_growth(step, lambda: self._distances(now))
        self._add_to_causes(now)
        self._one_step.remember(tensors)
        for side, recorded in tensors.items():
            update = RecordedUpdate.of(recorded)
            if update is not None:
                self._staleness.setdefault(side, Counter())[step - update.read] += 1

    def _end_at(self, step: int, mismatches: list[Mismatch], *, judge: bool) -> None:
        """End the comparison at a step of which nothing else can be compared."""
        if judge:
            self.mismatches, self.steps = tuple(mismatches), step + 1
        else:
            first = mismatches[0]
            self._end_growth(f"step {step}: {first.place.tensor} has {first.problem}")
        self._left = 0

    def _judge(self, now: _Step) -> None:
        """Compare a step rung by rung."""
        step, tensors, oracle = now.number, now.tensors, now.expected.get(ORACLE, {})
        free, found = self._compare_free_runs(now), self._compare_one_steps(now)
        pairs = self._judged_pairs()
        if any(name in recorded for recorded in tensors.values() for name in DECODED):
            self._decoded += compare_searches(self.spec, step, tensors, pairs)
            found += self._decoded
        if any(not self._evaluated.isdisjoint(recorded) for recorded in tensors.values()):
            found += EvaluationRung(self.spec).compare(step, tensors, pairs)
        self._add([*free, *found])
        self._conclude(step, self._without_amplified_rounding(free, found))
        # they may have stopped being judged with this very step
        judged = [*free, *found] if self.judges_free_runs else found
        self._history.add(
            step,
            {side: float(each["loss/global"]) for side, each in tensors.items()},
            free[0].distances if self._pairs else {},  # those of the first pair come first
            [each.shares for each in judged],
            {side: float(each["loss/global"]) for side, each in oracle.items()},
        )
        self._oracle = oracle
        self._coverage.step(step, tensors, now.inputs, now.expected[ONE_STEP])
        # what was evaluated after the step is no part of what the oracle's step computes
        if self.mismatches and not self.mismatches[0].check:
            self._explain(now)
        elif self.mismatches:
            self._explain_check(now)

    def _distances(self, now: _Step) -> dict[tuple[str, str], Mapping[str, Distance]]:
        """Measure all distances of the first wrong step, or of one after it."""
        step, tensors = now.number, now.tensors
        losses = {side: float(each["loss/global"]) for side, each in tensors.items()}
        oracle = next(iter(now.expected.get(ORACLE, {}).values()), None)
        if oracle is not None:
            losses["oracle"] = float(oracle["loss/global"])
        self._history.add_losses_after(step, losses)
        compared = {(a, b): (tensors[a], tensors[b]) for a, b in self._pairs}
        for other, of_side in now.expected.items():
            compared |= {(side, other): (tensors[side], of_side[side]) for side in tensors}
        return {
            pair: self._pairwise.compare(a, b, pair, step, judge=False).distances
            for pair, (a, b) in compared.items()
        }

    def _explain(self, now: _Step) -> None:
        """Find who departs in the first wrong step, and the evidence and the cause of it."""
        self._of_mismatch["disagreement"] = find_disagreement(
            self.mismatches, self.sides, self.spec.training.dtype, now.tensors, now.expected
        )
        departing = self.verdict.departing()
        evidence = self._evidence(now, departing)
        self._of_mismatch["evidence"] = evidence
        told = self._other_tokens(now.tensors, evidence)
        self._of_mismatch["explanations"] = told or self._explanations(
            now.tensors, evidence, departing
        )

    def _explain_check(self, now: _Step) -> None:
        """Find how what a check found wrong is made, and of an evaluation its cause."""
        found, tried = list[Confirmed](), list[str]()
        for wrong in self.mismatches if self._cause_seconds else ():
            side = wrong.sides[0]
            if wrong.check == "evaluation" and side in self.sides:
                recorded = now.tensors[side]
                before = self._one_step.start(side, recorded).snapshot
                given = wrong, recorded, before, self.sides[side].replicas
                causes, names = EvaluationRung(self.spec).causes(*given, self._cause_seconds)
                found, tried = [*found, *causes], tried or names
        self._of_mismatch["explanations"] = explained(self.mismatches)
        self._of_mismatch |= {"confirmed": found, "causes_tried": tried or None}

    def _evidence(self, now: _Step, departing: list[str]) -> dict[str, Evidence]:
        """Return label -> evidence, for the sides that depart, or for two sides."""
        first, tensors = self.mismatches[0].place.tensor, now.tensors
        found = {}
        for side in departing or list(tensors)[:2]:
            recorded, rounding = tensors[side], None
            if departing:
                expected = now.expected[ONE_STEP][side]
                rounding = self._one_step.rounding[side]
            else:
                expected = tensors[next(other for other in tensors if other != side)]
            both = [name for name in self.names if name in recorded and name in expected]
            bounds = bounds_of(self.spec.training.dtype, rounding)
            found_here = compare_step(recorded, expected, ("", ""), now.number, both, bounds)
            wrong = [mismatch.place.tensor for mismatch in found_here.mismatches]
            wrong += [
                n for n in recorded if n.startswith(("replicas/", "read/")) and n == first
            ]
            values = recorded.get(first), expected.get(first)
            found[side] = Evidence(*values, tuple(both), tuple(wrong))
        return found

    def _explanations(
        self,
        tensors: Mapping[str, Tensors],
        evidence: Mapping[str, Evidence],
        departing: list[str],
    ) -> tuple[Explanation, ...]:
        """Return how the first wrong tensor of a side is made of the right values."""
        first, spec = self.mismatches[0].place.tensor, self.spec
        told: dict[str, str] = {}
        for side, seen in evidence.items():
            a, b = seen.expected, seen.found
            before = self._one_step.start(side, tensors[side]).snapshot.get(first)
            if before is not None and b is not None and np.array_equal(before, b):
                told.setdefault(side, f"{side} leaves it as it was before the step")
                continue
            if a is None or b is None or rounded(b, a):  # the report has a line for a rounding
                continue
            of = next((other for other in evidence if other != side), "")
            of = f"the {ORACLE}" if departing else of
            recorded = tensors[side]
            at_ends = ends_of_rows(b, a, lengths_of(spec, first, recorded))
            axes, known = axes_of(spec, first, b.shape, recorded), numbers_of(spec, recorded)
            for says in [at_ends] if at_ends else explanations(b, a, axes, known):
                told.setdefault(says, says.format(a=of, b=side))
            if not departing:
                break
        return tuple(Explanation(first, sentence) for sentence in told.values())

    def _other_tokens(
        self, tensors: Mapping[str, Tensors], evidence: Mapping[str, Evidence]
    ) -> tuple[Explanation, ...]:
        """Say which sides embedded other tokens than they recorded as their batch."""
        name = self.mismatches[0].place.tensor
        told = []
        for side, seen in evidence.items() if name.endswith("/embedded") else ():
            before = self._one_step.start(side, tensors[side]).snapshot
            table = before[
                name.replace("forward/", "weight/").replace("embedded", "embed/table")
            ]
            if seen.found is None or seen.expected is None:
                continue
            wrong = seen.found[(seen.found != seen.expected).any(axis=-1)]
            if {each.tobytes() for each in wrong} <= {each.tobytes() for each in table}:
                says = f"{side} has embeddings of other tokens than those of its batch"
                told.append(Explanation(name, says))
        return tuple(told)

    def _add_to_causes(self, now: _Step) -> None:
        """Look for the causes of the first mismatch, and drop those that do not hold."""
        evidence = self._of_mismatch.get("evidence")
        if not self.mismatches or (evidence and departing_sides(self.mismatches)):
            exact = now.expected[ONE_STEP]
            found = self._causes.add(now.number, now.tensors, now.inputs, exact, evidence)
            tried = sorted(self._causes.tried) if self._cause_seconds and evidence else None
            self._of_mismatch |= {"confirmed": found, "causes_tried": tried}

    def _judged_pairs(self) -> list[tuple[str, str]]:
        """Return the sides that are compared with each other and must be equal to rounding."""
        if not self.judges_free_runs:
            return []
        return [pair for pair in self._pairs if self._known.comparable(*pair)]

    def _compare_free_runs(self, now: _Step) -> list[Finding]:
        step, tensors, expected = now.number, now.tensors, now.expected.get(ORACLE, {})
        judge, judged = self.judges_free_runs, self._judged_pairs()
        found = [
            self._compare(tensors[a], tensors[b], (a, b), step, judge=(a, b) in judged)
            for a, b in self._pairs
        ]
        return found + [
            self._compare(tensors[side], each, (side, ORACLE), step, judge=judge)
            for side, each in expected.items()
        ]

    def _compare(
        self, a: Tensors, b: Tensors, sides: tuple[str, str], step: int, **how: Any
    ) -> Finding:
        return self._pairwise.compare(a, b, sides, step, self.worst.get(sides), **how)

    def _compare_one_steps(self, now: _Step) -> list[Finding]:
        step, tensors, expected = now.number, now.tensors, now.expected[ONE_STEP]
        found = []
        for side, recorded in tensors.items():
            replicas = check_replicas(recorded, side, step, self.names)
            found += [
                Finding((side, ONE_STEP), replicas.rungs, replicas.mismatches[:1]),
                self._one_step.check_read_weights(side, recorded, step),
            ]
        self._one_step.rounding = {}
        for side, recorded in tensors.items():
            rounding = self._one_step.measure(side, now.inputs[side], recorded, expected[side])
            with self._known.oracle_of(side):
                sides = side, ONE_STEP
                found.append(
                    self._compare(recorded, expected[side], sides, step, rounding=rounding)
                )
        if not any(rounding.runs for rounding in self.rounding.values()):
            self._unmeasured.append(step)
        return found

    def _without_amplified_rounding(
        self, free: list[Finding], found: list[Finding]
    ) -> list[Finding]:
        """Return a step's findings, less free runs that only amplified rounding is wrong in.

        Args:
          free: those of the free runs.
          found: all others.
        """
        wrong = [mismatch for finding in free for mismatch in finding.mismatches]
        amplified = wrong and all(mismatch.rung != "batch" for mismatch in wrong)
        if amplified and not any(finding.mismatches for finding in found):
            self._stop_judging_free_runs(wrong)
            return found
        return free + found

    def _conclude(self, step: int, findings: Iterable[Finding]) -> None:
        """Keep a step's mismatches, in the order of computation."""
        self.mismatches = tuple(
            sorted(
                (mismatch for finding in findings for mismatch in finding.mismatches),
                key=lambda mismatch: self._order.index(mismatch.place.tensor),
            )
        )
        self.steps = step + 1

    def _stop_judging_free_runs(self, departed: list[Mismatch]) -> None:
        self.judges_free_runs = False
        self._amplified = min(
            departed, key=lambda mismatch: self.names.index(mismatch.place.tensor)
        )
        for (_, b), rungs_of_pair in self.worst.items():
            for rung, distance in rungs_of_pair.items():
                if b != ONE_STEP and rung != "batch":
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
    comparison.compare(
        {label: trace.read(step) for label, trace in by_label.items()}
        for step in range(len(steps))
    )
    if comparison.mismatches:
        add_losses_after(comparison.verdict.history, by_label, steps, "loss/global")
    return replace(comparison.verdict, cut=cut)
