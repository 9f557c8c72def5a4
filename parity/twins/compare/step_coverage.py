"""Counts the cases that the recorded steps of a run meet, and those of its decoded answers."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import filter as matching
from functools import partial

import numpy as np

from parity.compare.coverage import Fact, join_facts
from parity.compare.tensors import magnitude
from parity.twins.decoding.hypotheses import Hypotheses
from parity.twins.oracle.replay import RecordedUpdate
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec, learning_rate
from parity.twins.spec.step_arrays import StepInputs
from parity.twins.trace.side import TrainedSide

Tensors = Mapping[str, np.ndarray]

_TIE = 1e-12  # nats; a smaller margin is within the rounding of float64

_MEANINGS = {
    "answer ended by <eos>": "A hypothesis ended by itself.",
    "answer cut off at the limit": "A hypothesis had as many tokens as are allowed.",
    "beam search ended early": "Enough hypotheses had ended; none could become better.",
    "tie between answers": "Two hypotheses had equal scores, so the order of ids decided.",
}


def answer_facts(found: Iterable[Hypotheses] = ()) -> list[Fact]:
    """Return how often searches for answers met each case.

    Args:
      found: what the oracle's search found, for each sentence.
    """
    met: dict[str, list[bool]] = {name: [] for name in _MEANINGS}
    for each in found:
        ended = [hypothesis.finished for hypothesis in each.ranked]
        met["answer ended by <eos>"].append(any(ended))
        met["answer cut off at the limit"].append(not all(ended))
        met["beam search ended early"].append(each.ended_early)
        met["tie between answers"].append(each.margin <= _TIE)
    return [
        Fact(name, meaning, sum(met[name]), len(met[name]), "searches")
        for name, meaning in _MEANINGS.items()
    ]


_REPLICAS = (1, 2, 3)  # one; several; several of which one is neither the first nor the last
_LAYERS = 3  # a bottom, a middle and a top layer
SOFTMAX_ENDS = 63  # nats; above it either side computes a loss by another formula
_SATURATED = 0.995  # tanh(3): a cell state that is clipped at 3 would show
_DENORMAL = float(np.finfo(np.float32).tiny)  # float32 holds smaller numbers with fewer digits
_ROWS = {"time": "row", "source_time": "source"}  # time axis -> what a row along it is called


@dataclass(frozen=True)
class _Step:
    """What the cases are decided by, of one step.

    Attributes:
      number: the step's number.
      inputs: the global batch.
      norm: the norm of the gradient before clipping, by the oracle.
      shares: for each side, the number of rows of each replica.
      begins_epoch: whether it is the first step of an epoch that followed another.
      reshuffled: whether the batch differs from the one at its place of the epoch before.
    """

    number: int
    inputs: StepInputs
    norm: float
    shares: list[np.ndarray]
    begins_epoch: bool
    reshuffled: bool


# A case of the steps, and the function that decides whether a step meets it.
_Case = tuple[Fact, Callable[[_Step], bool]]


def _case(
    name: str, meaning: str, is_met: Callable[[_Step], bool], *, applies: bool = True
) -> _Case:
    return Fact(name, meaning, applies=applies), is_met


class StepCoverage:
    """Counts what the recorded steps of a run meet.

    Args:
      spec: the network, its text and its training.
      per_epoch: the number of steps of an epoch.
      sides: label -> side.
    """

    def __init__(self, spec: Spec, per_epoch: int, sides: Mapping[str, TrainedSide]):
        self._per_epoch, self._sides = per_epoch, sides
        # place in the epoch and first row of an asynchronous worker -> digest of the last batch
        self._digests: dict[tuple[int, int], bytes] = {}
        self._cases = [*_training_cases(spec, per_epoch), *_text_cases(spec)]
        self._limits = limit_facts()
        self._steps, self._met = 0, Counter[str]()
        self._rest = _layout_facts(spec, sides.values())
        if NETWORKS[spec.network].decodes:
            self._rest += answer_facts()

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return all cases, with how often the steps so far met them."""
        counted = (
            replace(fact, count=self._met[fact.name], of=self._steps) for fact, _ in self._cases
        )
        return (*counted, *self._limits, *self._rest)

    def step(
        self,
        step: int,
        tensors: Mapping[str, Tensors],
        inputs: Mapping[str, StepInputs],
        oracle: Mapping[str, Tensors],
    ) -> None:
        """Count the cases that a step meets.

        An asynchronous side computes other rows than the rest: what is counted is the batch of
        the synchronous sides, or the rows of the first side if there are none.

        Args:
          step: the step's number.
          tensors: label -> what that side recorded.
          inputs: label -> the inputs of that side's step.
          oracle: label -> what the oracle expects of that side.
        """
        first = next(
            (side for side in tensors if self._sides[side].synchronous), next(iter(tensors))
        )
        update, batch = RecordedUpdate.of(tensors[first]), inputs[first].batch
        step = step if update is None else update.step
        place, digest = step % self._per_epoch, _digest(batch)
        rows = place, 0 if update is None else update.first_row
        expected = next(iter(oracle.values()))
        self._limits = join_facts(self._limits, limit_facts(expected))
        seen = _Step(
            step,
            inputs[first],
            float(expected["gradient_norm"]),
            [
                recorded["batch/sizes"]
                for side, recorded in tensors.items()
                if inputs[side] is inputs[first]
            ],
            begins_epoch=step > 0 and place == 0,
            reshuffled=self._digests.get(rows, digest) != digest,
        )
        self._digests[rows] = digest
        self._steps += 1
        self._met.update(fact.name for fact, is_met in self._cases if is_met(seen))


def _training_cases(spec: Spec, per_epoch: int) -> list[_Case]:
    training, adam = spec.training, spec.training.optimizer == "adam"
    network = NETWORKS[spec.network]
    stream, rows = network.contiguous(spec.text), training.batch_size
    carries = stream and bool(network.state(spec.model))
    _, longest = network.row_lengths(spec.text).get("time", (0, 0))

    def rate(number: int) -> float:
        return learning_rate(training, number // per_epoch)

    def is_partial(step: _Step) -> bool:
        lengths = step.inputs.batch["lengths"]
        return len(lengths) < rows or (stream and bool(lengths.min() < longest))

    return [
        _case(
            "gradient clipped",
            "The norm of the gradient exceeded the clip norm.",
            lambda step: step.norm > training.clip_norm,
        ),
        _case(
            "gradient not clipped",
            "The norm of the gradient was within the clip norm.",
            lambda step: step.norm <= training.clip_norm,
        ),
        _case(
            "Adam's moments continued",
            "The update started from the moments that an earlier one had left.",
            lambda step: step.number > 0 and adam,
            applies=adam,
        ),
        _case(
            "learning rate decayed",
            "The learning rate was lower than in the step before.",
            lambda step: rate(step.number) < rate(step.number - 1),
            applies=training.decay < 1,
        ),
        _case(
            "learning rate inexact in float32",
            "Single precision rounds the learning rate, as it does 0.7, not 2.",
            lambda step: float(np.float32(rate(step.number))) != rate(step.number),
        ),
        _case(
            "dropout",
            "Masks dropped units.",
            lambda step: bool(step.inputs.masks),
            applies=getattr(spec.model, "keep", 1.0) < 1,
        ),
        _case(
            "new epoch",
            "The step was the first of an epoch that followed another one.",
            lambda step: step.begins_epoch,
        ),
        _case(
            "partial batch",
            "The batch had fewer rows, or shorter ones, than others.",
            is_partial,
        ),
        _case(
            "state carried",
            "The step started from the recurrent state that the one before had left.",
            lambda step: step.inputs.carry,
            applies=carries,
        ),
        _case(
            "state reset",
            "The first step of a new epoch started from a zero state.",
            lambda step: carries and step.begins_epoch and not step.inputs.carry,
            applies=carries,
        ),
        _case(
            "rows reshuffled",
            "The batch was not the one at the same place of the epoch before.",
            lambda step: step.reshuffled,
            applies=not stream,
        ),
    ]


def _text_cases(spec: Spec) -> Iterator[_Case]:
    """Yield the cases of rows, of their words, and of their shares among the replicas."""
    network = NETWORKS[spec.network]

    def some_row_has(lengths: str, length: int) -> Callable[[_Step], bool]:
        return lambda step: bool((step.inputs.batch[lengths] == length).any())

    def has_unknown(name: str, lengths: str) -> Callable[[_Step], bool]:
        def occurs(step: _Step) -> bool:
            ids, real = (step.inputs.batch[each] for each in (name, lengths))
            is_real = np.arange(ids.shape[1]) < real[:, None]  # padding has an id, too
            return bool((ids[is_real] == network.unknown_id).any())

        return occurs

    def has_empty_replica(step: _Step) -> bool:
        lengths = step.inputs.batch["lengths"]
        return any(
            not np.add.reduceat(lengths, np.cumsum([0, *sizes[:-1]])).all()
            for sizes in step.shares
        )

    yield _case(
        "padding",
        "A row was padded to the length of a longer one.",
        lambda step: any(np.ptp(step.inputs.batch[n]) > 0 for n in network.lengths.values()),
    )
    for axis, (least, most) in network.row_lengths(spec.text).items():
        row, has = _ROWS.get(axis, axis), partial(some_row_has, network.lengths[axis])
        yield _case(
            f"{row} of one token", f"A {row} had a single token.", has(1), applies=least <= 1
        )
        yield _case(
            f"{row} of full length",
            f"A {row} was as long as is allowed, {most} tokens.",
            has(most),
        )
        if least == 0:
            yield _case(f"{row} without a token", f"A {row} had no token.", has(0))
    for name in network.vocabularies if network.unknown_id is not None else ():
        unknown = has_unknown(name, network.lengths[str(network.batch[name][1])])
        yield _case(f"<unk> in {name}", "A word was not in the vocabulary.", unknown)
    yield _case(
        "uneven shares",
        "The replicas of a side had different numbers of rows.",
        lambda step: any(np.ptp(sizes) > 0 for sizes in step.shares),
    )
    fewest, _ = network.row_lengths(spec.text).get("time", (1, 0))
    yield _case(
        "replica without a token",
        "All rows of a replica were empty, and it had to add nothing.",
        has_empty_replica,
        applies=fewest == 0,
    )


def limit_facts(step: Tensors | None = None) -> tuple[Fact, ...]:
    """Return whether one step, if there is one, reaches values that a mistake may cut.

    Args:
      step: what the oracle expects of the step.
    """
    tensors, steps = step or {}, int(step is not None)
    embedded = (tensors[name] for name in matching(tensors, "forward/*embedded"))
    longest = max(
        (float(np.linalg.norm(each, axis=-1).max()) for each in embedded), default=0.0
    )
    gradients = [np.abs(tensors[name]) for name in matching(tensors, "gradient/*")]
    reached = {
        f"loss beyond {SOFTMAX_ENDS} nats": (
            _largest(tensors, "forward/*token_loss") > SOFTMAX_ENDS,
            "A token was so unlikely that a softmax in single precision ends before it: a loss "
            "that is clipped would show.",
        ),
        "hidden unit saturated": (
            _largest(tensors, "forward/*hidden") > _SATURATED,
            f"A recurrent layer's output was beyond {_SATURATED}: a cell state that is clipped "
            "would show.",
        ),
        "embedding longer than 1": (
            longest > 1,
            "The norm of a token's embedding was above 1: one that is scaled down to it would "
            "show.",
        ),
        "zero gradient": (
            any((each == 0).any() for each in gradients),
            "A gradient had zeros, as those of a word that the batch lacks: an update that "
            "leaves them out would show.",
        ),
        "denormal gradient": (
            any(((each > 0) & (each < _DENORMAL)).any() for each in gradients),
            f"An element of a gradient was below {_DENORMAL:.1e}, the least normal number of "
            "single precision, but not zero: a division by it would show.",
        ),
    }
    return tuple(
        Fact(
            name,
            f"{meaning} Resumed steps are made to reach it, in float64.",
            int(is_reached),
            steps,
        )
        for name, (is_reached, meaning) in reached.items()
    )


def staleness_fact(
    sides: Mapping[str, TrainedSide], staleness: Mapping[str, Mapping[int, int]]
) -> Fact:
    """Return how many updates were as stale as their side's settings allow.

    Args:
      staleness: label -> staleness -> the number of the side's updates.
    """
    bounds = {
        label: side.greatest_staleness
        for label, side in sides.items()
        if not side.synchronous and side.replicas > 1 and side.greatest_staleness is not None
    }
    counts = [(staleness.get(label, {}), bound) for label, bound in bounds.items()]
    return Fact(
        "staleness at its bound",
        "An update was as stale as its schedule allows.",
        sum(found.get(bound, 0) for found, bound in counts),
        sum(sum(found.values()) for found, _ in counts),
        "updates",
        applies=bool(bounds),
    )


def _layout_facts(spec: Spec, sides: Iterable[TrainedSide]) -> list[Fact]:
    sides = list(sides)
    counts, clip = [side.replicas for side in sides], spec.training.clip_norm
    layers = getattr(spec.model, "num_layers", None)
    return [
        *(
            Fact(
                f"{number} replica{'s' * (number > 1)}",
                f"A side on which each batch was shared by {number}.",
                counts.count(number),
                len(counts),
                "sides",
            )
            for number in _REPLICAS
        ),
        Fact(
            "several replicas in a process",
            "A side of several processes had more replicas than processes.",
            sum(1 < side.processes < side.replicas for side in sides),
            unit="sides",
            applies=any(side.processes > 1 for side in sides),
        ),
        Fact(
            "clip norm inexact in float32",
            "The clip norm is a number that single precision rounds, as it does 0.7, not 2.",
            int(float(np.float32(clip)) != clip),
            unit="settings",
        ),
        Fact(
            f"{_LAYERS} layers or more",
            "The network has a recurrent layer that is neither the bottom nor the top one.",
            layers if layers is not None and layers >= _LAYERS else 0,
            unit="layers",
            applies=layers is not None,
        ),
    ]


def _largest(tensors: Tensors, pattern: str) -> float:
    return max((magnitude(tensors[name]) for name in matching(tensors, pattern)), default=0.0)


def _digest(batch: Tensors) -> bytes:
    digest = hashlib.sha256()
    for array in batch.values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
