"""The ladder: all sides of one run and the oracle, step by step, rung by rung.

Two ways of holding a side against the oracle are used.

*Free run.* The oracle trains on its own from the same initial weights. In float64 this is the
proof: after hundreds of steps everything must still agree to rounding. A training can be so
unstable that it amplifies even that rounding beyond the bound; where a free run exceeds it
although every rung of every step is in order by the rule below, the free runs are no longer
judged from there, and the report says so.

*One step.* The oracle computes each rung of each step anew in float64 from what the side itself
recorded on the rung below: activations and gradients from its weights and LSTM state before the
step, clipping from its gradients, optimiser state from its clipped gradients, weights from its
optimiser state. Differences pile up neither over steps nor over rungs, so the bounds stay tight
however long the run: a multiple of what rounding alone does to that very step. If every step of
both sides is the oracle's step, to rounding, and both start from the same weights, then they
are the same training; that the free runs drift apart in float32 is rounding that training
amplifies, and it is reported, not judged.

An isolated run (see parity/oracle/isolation.py) knows but one way: every step of a side is the
oracle's own, layer by layer, in either precision. The loss is held against the side's losses
per token, and what lies above the gradients against the rung below, as in one step; so nothing
is wrong because of another tensor, and all that are wrong are found, not the first alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from parity.base.errors import UsageError
from parity.base.threads import at_once
from parity.compare.decoded import (
    Rescore,
    Tie,
    check_decoded,
    compare_decoded,
    decode,
    decode_tensors,
    own_scores,
)
from parity.compare.history import History
from parity.compare.signatures import Evidence
from parity.compare.tensors import (
    DECODED,
    SEARCHES,
    Distance,
    Mismatch,
    check_numbers,
    check_replicas,
    check_shapes,
    compare_step,
    first_in_loop,
    tensor_names,
)
from parity.oracle.decode import OracleModel
from parity.oracle.isolation import Isolation
from parity.oracle.optimizers import clip_by_global_norm, update_slots, update_weights
from parity.oracle.rounding import Rounding, rounding_of_scores
from parity.oracle.training import Oracle
from parity.spec.batch_io import StepInputs, dropout_masks
from parity.spec.initial import initial_snapshot, zero_state
from parity.spec.networks import NETWORKS
from parity.spec.parameters import snapshot_names
from parity.spec.spec import Spec, learning_rate
from parity.trace.side import Side, labels_of, pairs_of
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE
from parity.trace.trace import RUNGS, Trace

ORACLE = "oracle"
ONE_STEP = "oracle, one step"

# Of a batch, what the spec says and not the text.
_SCHEDULED = ("batch/learning_rate",)

Tensors = Mapping[str, np.ndarray]


@dataclass
class Verdict:
    """What a ladder found.

    Attributes:
      dtype: precision of the run.
      pairs: (side, side) -> rung -> distance.
      mismatches: of the first step that had any, in the order of computation; of an isolated
        run of all its tensors that are wrong.
      oracle: the oracle's tensors of that step, or of the last one.
      steps: how many were compared.
      amplified: in float64, where rounding that the training amplifies first exceeded the bound
        of the free runs, if it did; from there on only single rungs are judged.
      evidence: side -> what it has in the first tensor that differs; of the sides that depart
        from the oracle there, or of both where that cannot be said.
      ties: sentences that a side decoded in another way, by less than rounding decides.
      history: losses and distances step by step, for pictures.
      isolated: whether every layer read the oracle's inputs.
      compared: how many tensors each step has.
      sides: label -> the side that goes by it in `pairs`, `mismatches` and `evidence`.
    """

    dtype: str
    pairs: dict[tuple[str, str], dict[str, Distance]] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)
    oracle: Tensors = field(default_factory=dict)
    steps: int = 0
    amplified: Mismatch | None = None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    ties: list[Tie] = field(default_factory=list)
    history: History = field(default_factory=History)
    isolated: bool = False
    compared: int = 0
    sides: dict[str, Side] = field(default_factory=dict)

    @property
    def matches(self) -> bool:
        """Return whether nothing differed by more than is allowed."""
        return not self.mismatches

    def departing(self) -> list[str]:
        """Return the sides that depart from the oracle in the first tensor that differs.

        None where the oracle has no part in it: it reads the batches that the sides have read.
        """
        if self.matches:
            return []
        first, found = self.mismatches[0], set()
        if first.rung == "batch" and first.place.tensor not in _SCHEDULED:
            return []
        for mismatch in self.mismatches:
            a, b = mismatch.sides
            if mismatch.place.tensor == first.place.tensor:
                if mismatch.within:
                    found.add(mismatch.within)
                elif b in (ORACLE, ONE_STEP):
                    found.add(a)
        return sorted(found)

    def allowed(self, rung: str) -> str:
        """Return what a rung allows, for people."""
        free = str(TABLE[self.dtype, rung])
        if self.isolated or rung not in ONE_STEP_TIMES:
            return free
        step = f"{ONE_STEP_TIMES[rung]:g} x rounding"
        return step if self.dtype == "float32" else f"{free}; {step}"


class Ladder:
    """Compares the sides of one run with each other and with the oracle.

    Args:
      headers: label -> header of a side's trace; which of them are compared with each other,
        `pairs_of` says.

    Attributes:
      sides: label -> side.
      rounding: side -> what rounding does to the step that was compared last.

    Raises:
      UsageError: if the sides did not run the same spec on the same text.
    """

    def __init__(self, headers: Mapping[str, dict[str, Any]]):
        self.sides = {label: Side.from_header(header) for label, header in headers.items()}
        self._first = next(iter(self.sides))
        first, *others = headers.items()
        for side, header in others:
            _check_same(first, (side, header))
        self.spec = Spec.from_json(first[1]["spec"])
        self.per_epoch = first[1]["batches_per_epoch"]
        isolated = first[1].get("isolated", False)
        self.names = tensor_names(self.spec, isolated=isolated)
        self._order = _in_order_of_loop(self.spec, self.names)
        self.judges_free_runs = self.spec.training.dtype == "float64" and not isolated
        self.verdict = Verdict(self.spec.training.dtype, isolated=isolated, sides=self.sides)
        self._isolation = Isolation(self.spec) if isolated else None
        self._oracle = Oracle(self.spec, initial_snapshot(self.spec))
        self._before: dict[str, Tensors] = {}
        self.rounding: dict[str, Rounding] = {}
        self._pairs = pairs_of(self.sides)
        self._drawn = next(iter(self._pairs), None)  # both frameworks', where two are compared
        self.verdict.history = History(self.verdict.dtype, list(self.sides), self._drawn)

    def step(self, step: int, tensors: Mapping[str, Tensors]) -> None:
        """Compare one step.

        Args:
          tensors: side -> what it recorded.

        Raises:
          UsageError: for a side that lacks a tensor, or holds one of another shape.
          NumericFailure: for a NaN or infinity on any side.
        """
        for side in self.sides:
            check_shapes(self.spec, tensors[side], side, step, self.names)
            check_numbers(tensors[side], side, step, self.names)
        batch = tensors[self._first]
        for side in self.sides:
            for name in NETWORKS[self.spec.network].batch:
                seen = [list(each[f"batch/{name}"].shape) for each in (batch, tensors[side])]
                if seen[0] != seen[1]:
                    raise UsageError(
                        f"{self._first} and {side}, step {step}: batch/{name} has shape "
                        f"{seen[0]} against {seen[1]}; allowed: one batch for all sides"
                    )
        inputs = self._inputs(step, batch)
        if self._isolation is not None:
            self._step_isolated(self._isolation, step, tensors, inputs)
            return
        expected, *one_steps = at_once(
            [
                partial(self._expect, self._oracle, inputs, step, batch),
                *(
                    partial(self._one_step, side, inputs, step, tensors[side])
                    for side in self.sides
                ),
            ]
        )
        free, found = [], []
        drawn: dict[str, Distance] = {}
        shared: dict[str, Tensors] = {}
        for a, b in self._pairs:
            kept = drawn if (a, b) == self._drawn else None
            free.append(
                self._compare(tensors[a], tensors[b], (a, b), step, free_run=True, seen=kept)
            )
        for side in self.sides:
            # the oracle sums its losses by the side's own shares of the rows
            mine = shared[side] = self._shares(expected, tensors[side], inputs)
            free.append(self._compare(tensors[side], mine, (side, ORACLE), step, free_run=True))
            distance, mismatch = check_replicas(tensors[side], side, step, self.names)
            own = self.verdict.pairs.setdefault((side, ORACLE), {})
            own.setdefault("replicas", Distance()).add(distance)
            found.append(mismatch)
        self.verdict.history.add(step, tensors, shared, drawn)
        self.rounding = {}
        for side, one_step in zip(self.sides, one_steps, strict=True):
            one_step = self._shares(one_step, tensors[side], inputs)
            rounding = self._rounding_of(side, inputs, tensors[side], one_step)
            found.append(
                self._compare(
                    tensors[side], one_step, (side, ONE_STEP), step, rounding=rounding
                )
            )
        if any(name in tensors[side] for side in self.sides for name in DECODED):
            found += self._decoded(step, tensors)
        departed = [mismatch for mismatch in free if mismatch and mismatch.rung != "batch"]
        if departed and not any(found) and len(departed) == sum(map(bool, free)):
            self._judge_free_runs_no_more(departed)
        else:
            found = free + found
        self.verdict.mismatches = sorted(
            (mismatch for mismatch in found if mismatch),
            key=lambda mismatch: self._order.index(mismatch.place.tensor),
        )
        self.verdict.oracle = expected
        self.verdict.steps = step + 1
        if not self.verdict.matches:
            self._gather_evidence(step, tensors, inputs)
        self._before = dict(tensors)

    def _gather_evidence(
        self, step: int, tensors: Mapping[str, Tensors], inputs: StepInputs
    ) -> None:
        """Keep what tells the causes of a mismatch apart; see parity/compare/signatures.py."""
        first = self.verdict.mismatches[0].place.tensor
        departing = self.verdict.departing()
        dtype = self.spec.training.dtype
        axes = NETWORKS[self.spec.network].activations(self.spec.model)
        for side in departing or list(self.sides)[:2]:
            recorded = tensors[side]
            expected: Tensors = self._one_step(side, inputs, step, recorded)
            if departing:
                expected = self._shares(expected, recorded, inputs)
            else:
                expected = tensors[next(other for other in self.sides if other != side)]
            wrong = [
                name
                for name in self.names
                if name in recorded
                and name in expected
                and compare_step(
                    recorded,
                    expected,
                    (side, ""),
                    step,
                    [name],
                    dtype,
                    rounding=self.rounding[side] if departing else None,
                )[1]
            ]
            wrong += [
                name for name in recorded if name.startswith("replicas/") and name == first
            ]
            on_time = axes.get(first.removeprefix("forward/"), ())[1:2]
            lengths = NETWORKS[self.spec.network].lengths.get(str(*on_time))
            self.verdict.evidence[side] = Evidence(
                step,
                first,
                recorded.get(first),
                expected.get(first),
                tuple(wrong),
                tuple(recorded["batch/sizes"].tolist()),
                inputs.batch[lengths] if lengths else None,
                self.spec.network,
            )

    def _step_isolated(
        self,
        isolation: Isolation,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: StepInputs,
    ) -> None:
        """Hold each side against the step of the oracle that its layers were fed with."""
        batch = tensors[self._first]
        rate, sizes = self._rate(step), batch["batch/sizes"].tolist()
        oracle = isolation.step(inputs, rate, sizes)
        expected = self._completed(oracle.expected, step, batch)
        found: list[Mismatch] = []
        drawn: dict[str, Distance] = {}
        shared: dict[str, Tensors] = {}
        for a, b in self._pairs:
            kept = drawn if (a, b) == self._drawn else None
            self._compare(
                tensors[a], tensors[b], (a, b), step, free_run=True, seen=kept, every=found
            )
        for side in self.sides:
            recorded = tensors[side]
            shared[side] = self._shares(expected, recorded, inputs)
            shares = self._shares(recorded, recorded, inputs)["loss/replicas"]
            one_step = expected | self._from_below(oracle.snapshot, recorded, rate)
            one_step["batch/sizes"] = recorded["batch/sizes"]
            one_step |= {"loss/replicas": shares, "loss/global": shares.sum()}
            self._compare(recorded, one_step, (side, ONE_STEP), step, every=found)
            distance, _ = check_replicas(recorded, side, step, self.names, every=found)
            own = self.verdict.pairs.setdefault((side, ONE_STEP), {})
            own.setdefault("replicas", Distance()).add(distance)
        self.verdict.history.add(step, tensors, shared, drawn)
        self.verdict.mismatches = sorted(
            found, key=lambda mismatch: self.names.index(mismatch.place.tensor)
        )
        self.verdict.oracle = expected
        self.verdict.steps = step + 1
        self.verdict.compared = sum(
            any(name in tensors[side] for side in self.sides) for name in self.names
        )

    def _judge_free_runs_no_more(self, departed: list[Mismatch]) -> None:
        self.judges_free_runs = False
        self.verdict.amplified = min(
            departed, key=lambda mismatch: self.names.index(mismatch.place.tensor)
        )
        for (_, b), rungs_of_pair in self.verdict.pairs.items():
            for rung, distance in rungs_of_pair.items():
                if b != ONE_STEP and rung not in ("batch", "replicas"):
                    distance.used = None

    def _compare(
        self,
        a: Tensors,
        b: Tensors,
        sides: tuple[str, str],
        step: int,
        *,
        free_run: bool = False,
        seen: dict[str, Distance] | None = None,
        every: list[Mismatch] | None = None,
        rounding: Rounding | None = None,
    ) -> Mismatch | None:
        judge = self.judges_free_runs or not free_run
        batch = [name for name in self.names if name.startswith("batch/")]
        rest = [
            name
            for name in self.names
            if not name.startswith(("batch/", "replicas/", "decode/"))
        ]
        if _different_replicas(a, b):
            batch.remove("batch/sizes")
            rest.remove("loss/replicas")
        dtype = self.spec.training.dtype
        # always exact
        distances, first = compare_step(a, b, sides, step, batch, dtype, seen=seen, every=every)
        worst = self.verdict.pairs.setdefault(sides, {})
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
        if second is not None:
            loop = NETWORKS[self.spec.network].loop(self.spec.model)
            names = [f"forward/{name}" for name in loop]
            second = first_in_loop(a, b, second, names, dtype, rounding)
        return first or second

    def _decoded(self, step: int, tensors: Mapping[str, Tensors]) -> list[Mismatch | None]:
        """Hold what each side decoded against the oracle, and in float64 side against side."""
        tolerance = TABLE[self.spec.training.dtype, "decode"]
        model_spec = self.spec.model
        found: list[Mismatch | None] = []
        margins: dict[str, dict[str, list[float]]] = {}
        first, words = tensors[self._first], model_spec.source_vocabulary_size
        for side in self.sides:
            check_decoded(tensors[side], first, side, step, words)

        def own(recorded: Tensors, model: OracleModel) -> Rescore:
            return own_scores(model, recorded, model_spec.target_vocabulary_size)

        def score_again(recorded: Tensors, weights: Tensors) -> np.ndarray:
            dtype = next(iter(weights.values())).dtype.type
            scores = own(recorded, OracleModel(model_spec, weights, dtype))
            count = len(recorded["decode/source"])
            return np.concatenate([scores(kind, k) for kind in SEARCHES for k in range(count)])

        def compare(
            a: Tensors,
            b: Tensors,
            sides: tuple[str, str],
            oracle_of: str,
            rescored: Rescore | None = None,
        ) -> None:
            arguments = a, b, margins[oracle_of], sides, step, tolerance, rescored
            distance, mismatch, ties = compare_decoded(*arguments)
            if mismatch is not None and rescored is not None:
                # weights may amplify rounding by more than the tolerance knows of
                dtype = self.spec.training.dtype
                rounding = rounding_of_scores(a, dtype, partial(score_again, a))
                least = ONE_STEP_TIMES["forward"] * rounding
                distance, mismatch, ties = compare_decoded(*arguments, least=least)
            self.verdict.pairs.setdefault(sides, {})["decode"] = distance
            self.verdict.ties += ties
            found.append(mismatch)

        for side in self.sides:
            recorded = tensors[side]
            beam, penalty, most = recorded["decode/settings"].tolist()
            asked = recorded["decode/source"], recorded["decode/source_lengths"]
            weights = {
                name.split("/", 1)[1]: _wide(array)
                for name, array in recorded.items()
                if name.startswith("weight/")
            }
            model = OracleModel(model_spec, weights)
            searches = decode(model, *asked, int(beam), penalty, int(most))
            expected = decode_tensors(*asked, searches, int(beam), penalty, int(most))
            margins[side] = {
                kind: [hypotheses.margin for hypotheses in sentences]
                for kind, sentences in zip(SEARCHES, searches, strict=True)
            }
            compare(recorded, expected, (side, ONE_STEP), side, own(recorded, model))
        if self.judges_free_runs:
            for a, b in self._pairs:
                compare(tensors[a], tensors[b], (a, b), a)
        return found

    def _inputs(self, step: int, batch: Tensors) -> StepInputs:
        arrays = {name: batch[f"batch/{name}"] for name in NETWORKS[self.spec.network].batch}
        masks = dropout_masks(self.spec, step, arrays)
        return StepInputs(arrays, bool(batch["batch/carry"]), masks)

    def _expect(
        self, oracle: Oracle, inputs: StepInputs, step: int, batch: Tensors
    ) -> dict[str, np.ndarray]:
        sizes = [int(size) for size in batch["batch/sizes"]]
        return self._completed(oracle.step(inputs, self._rate(step), sizes), step, batch)

    def _rate(self, step: int) -> float:
        return learning_rate(self.spec.training, step // self.per_epoch)

    def _completed(
        self, expected: dict[str, np.ndarray], step: int, batch: Tensors
    ) -> dict[str, np.ndarray]:
        """Add what a trace records beside what a network computes."""
        expected |= {name: batch[name] for name in batch if name.startswith("batch/")}
        # what the schedule says, not what the side says it used
        return expected | {"batch/learning_rate": np.array(self._rate(step))}

    def _rounding_of(
        self, side: str, inputs: StepInputs, recorded: Tensors, exact: Tensors
    ) -> Rounding:
        """Return what rounding does to a step of a side, measured once for all sides."""
        before, state = self._before.get(side), zero_state(self.spec, inputs.rows)
        if before is not None and inputs.carry:
            state = {name: before[f"forward/{name}"] for name in state}
        snapshot = initial_snapshot(self.spec) if before is None else before
        alike = next(iter(self.rounding.values()), None)
        self.rounding[side] = Rounding(
            self.spec, snapshot, state, inputs, recorded, exact, alike
        )
        return self.rounding[side]

    def _one_step(
        self, side: str, inputs: StepInputs, step: int, recorded: Tensors
    ) -> dict[str, np.ndarray]:
        before = self._before.get(side)
        snapshot = (
            initial_snapshot(self.spec)
            if before is None
            else {name: before[name] for name in snapshot_names(self.spec)}
        )
        oracle = Oracle(self.spec, snapshot)
        if before is not None and inputs.carry:
            state = NETWORKS[self.spec.network].state(self.spec.model)
            oracle.state = {name: _wide(before[f"forward/{name}"]) for name in state}
        expected = self._expect(oracle, inputs, step, recorded)
        return expected | self._from_below(snapshot, recorded, self._rate(step))

    def _from_below(
        self, snapshot: Tensors, recorded: Tensors, rate: float
    ) -> dict[str, np.ndarray]:
        """Compute each rung above the gradients from what was recorded on the one below."""
        table = [name for name in self.names if name.startswith("gradient/")]
        table = [name.split("/", 1)[1] for name in table]
        gradients = {name: _wide(recorded[f"gradient/{name}"]) for name in table}
        clipped, norm = clip_by_global_norm(gradients, self.spec.training.clip_norm)
        expected = {f"clipped_gradient/{name}": clipped[name] for name in table}
        expected["gradient_norm"] = np.asarray(norm)
        before_step = {name: _wide(array) for name, array in snapshot.items()}
        clipped = {name: _wide(recorded[f"clipped_gradient/{name}"]) for name in table}
        slots = update_slots(self.spec, before_step, clipped)
        expected |= slots
        slots = {name: _wide(recorded[name]) for name in slots}
        return expected | update_weights(self.spec, before_step, slots, clipped, rate)

    def _shares(
        self, expected: Tensors, recorded: Tensors, inputs: StepInputs
    ) -> dict[str, np.ndarray]:
        rows = expected["forward/token_loss"].sum(axis=1, dtype=np.float64) / inputs.num_tokens
        bounds = np.cumsum([0, *recorded["batch/sizes"][:-1]])
        return dict(expected) | {
            "batch/sizes": recorded["batch/sizes"],
            "loss/replicas": np.add.reduceat(rows, bounds),
        }


def _in_order_of_loop(spec: Spec, names: list[str]) -> list[str]:
    """Return the names with those that a loop computes in the order of its steps."""
    loop = [f"forward/{name}" for name in NETWORKS[spec.network].loop(spec.model)]
    places = iter(loop)
    return [next(places) if name in loop else name for name in names]


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)


def climb(traces: Sequence[Trace]) -> Verdict:
    """Compare recorded traces with each other and the oracle, up to the first mismatch.

    Raises:
      UsageError: if they are not of the same run, or damaged.
      NumericFailure: for a NaN or infinity.
    """
    labels = labels_of([t.side for t in traces], [t.folder for t in traces])
    ladder = Ladder({label: trace.header for label, trace in zip(labels, traces, strict=True)})
    counts = {label: len(t.index()) for label, t in zip(labels, traces, strict=True)}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        listed = ", ".join(f"{label} has {count}" for label, count in counts.items())
        raise UsageError(f"the traces hold different numbers of steps, or none: {listed}")
    for step in range(min(counts.values())):
        ladder.step(
            step, {label: trace.read(step) for label, trace in zip(labels, traces, strict=True)}
        )
        if not ladder.verdict.matches:
            break
    return ladder.verdict


def rungs() -> list[str]:
    """Return the rungs in the order of computation."""
    return list(dict.fromkeys(RUNGS.values()))


def _different_replicas(a: Tensors, b: Tensors) -> bool:
    return "batch/sizes" in a and len(a["batch/sizes"]) != len(b["batch/sizes"])


def _check_same(first: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> None:
    (a, of_a), (b, of_b) = first, other
    if of_a.get("isolated", False) != of_b.get("isolated", False):
        which, not_it = (a, b) if of_a.get("isolated", False) else (b, a)
        raise UsageError(
            f"{which} is of an isolated run and {not_it} is not; allowed: both or neither"
        )
    for name in ("spec", "corpus", "batches_per_epoch"):
        if of_a.get(name) == of_b.get(name):
            continue
        seen = f"{of_a.get(name)!r} against {of_b.get(name)!r}"
        if name == "spec":
            specs = Spec.from_json(of_a[name]).to_json(), Spec.from_json(of_b[name]).to_json()
            networks = [spec["network"] for spec in specs]
            if networks[0] != networks[1]:  # their fields are others
                seen = f"network {networks[0]!r} against {networks[1]!r}"
                raise UsageError(f"{a} and {b} are not of the same run: spec differs: {seen}")
            seen = "; ".join(
                f"{field} {specs[0][part][field]!r} against {specs[1][part][field]!r}"
                for part in ("model", "text", "training")
                for field in specs[0][part]
                if specs[0][part][field] != specs[1][part][field]
            )
        raise UsageError(f"{a} and {b} are not of the same run: {name} differs: {seen}")
