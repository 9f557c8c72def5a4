"""The checks of whole runs, made with a fault planted in one side.

They are those of `parity run`, with the comparisons of parity/compare; only here the runs are
small, and one side of each has the fault.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parity.compare.findings import Finding, find_in_exact_check
from parity.trace.reader import Trace
from parity.twins.compare.answers import AnswerSettings, AnswersRung, SideAnswers
from parity.twins.compare.resumed import Resumed, ResumeRung
from parity.twins.compare.whole_runs import (
    compare_counts,
    compare_repeated,
    compare_untraced,
    recorded_step,
    repeated,
)
from parity.twins.faults.fault import Edit
from parity.twins.faults.side_runs import SideRuns, SmallRun
from parity.twins.faults.small_runs import SETTINGS, TRAINED
from parity.twins.run.answer_probes import answer_probes
from parity.twins.run.compare_while_training import RESUMED_STEPS
from parity.twins.run.whole_run_checks import move_checkpoint
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.side import TrainedSide, labels_of
from parity.twins.training.checkpoint import load_checkpoint, newest_first, save_checkpoint
from parity.twins.training.loss_table import read_losses
from parity.twins.training.meter import WARM_UP


@dataclass(frozen=True)
class Planted:
    """A fault planted in one side of a small run.

    Attributes:
      name: a name for its files.
      side: the framework that has the fault.
      edits: the edits that make it.
      run: the run.
      correct: framework -> its trace with nothing planted.
    """

    name: str
    side: str
    edits: Sequence[Edit]
    run: SmallRun
    correct: Mapping[str, Trace]

    def edits_of(self, side: str) -> Sequence[Edit]:
        """Return what is changed in the source of a side."""
        return self.edits if side == self.side else ()


class PlantedChecks:
    """Makes the check that must find a fault.

    Args:
      runs: runs the sides.
    """

    def __init__(self, runs: SideRuns):
        self._runs = runs
        self._answered: dict[tuple[str, str, str], SideAnswers] = {}
        self._lock = threading.Lock()

    def make(self, check: str, planted: Planted, faulty: Trace) -> list[Finding]:
        """Make a check on recorded steps that match, and return what it finds.

        Args:
          check: the name of the check; one without processes of its own does nothing here.
          planted: the fault, and where it is planted.
          faulty: the trace of the side that has it.
        """
        checks = {
            "answers": self._answers,
            "resume": self._resume,
            "untraced": self._trained,
            "counting": self._trained,
        }
        return checks.get(check, self._repeat)(planted, faulty)

    def _repeat(self, planted: Planted, faulty: Trace) -> list[Finding]:
        """Train the faulty side again: a correct side would compute the same bits."""
        # names of unequal length: "order-of-sums" depends on the length of the command line
        again = self._runs.record(
            planted.side, planted.run, f"{planted.name}/second", planted.edits
        )
        label, names = _label(faulty), tensor_names(_spec(faulty))
        found = None
        for (step, first), (_, second) in zip(faulty.steps(), again.steps(), strict=True):
            found = compare_repeated(label, step, first, second, names)
            if found is not None:
                break
        return [find_in_exact_check("repeat", (label, repeated(label)), found)]

    def _resume(self, planted: Planted, faulty: Trace) -> list[Finding]:
        """Resume the faulty side's checkpoint on both sides, and the other's on the faulty."""
        traces = dict(planted.correct) | {planted.side: faulty}
        spec, per_epoch = _spec(faulty), faulty.header["batches_per_epoch"]
        sides = {
            _label(trace): TrainedSide.from_json(trace.header) for trace in traces.values()
        }
        rung, findings = ResumeRung(spec, per_epoch, sides), list[Finding]()
        (other,) = (name for name in FRAMEWORKS if name != planted.side)
        for saver, loader in (
            (planted.side, planted.side),
            (planted.side, other),
            (other, planted.side),
        ):
            checkpoint = resume = _oldest_checkpoint(traces[saver])
            step = int(checkpoint.stem.removeprefix("step-"))
            if saver != loader:
                folder = self._runs.folder(f"{planted.name}/moved-{saver}")
                resume = move_checkpoint(checkpoint, folder)
            resumed = self._runs.record(
                loader,
                planted.run,
                f"{planted.name}/{loader}-from-{saver}",
                planted.edits_of(loader),
                steps=min(step + RESUMED_STEPS, SETTINGS[planted.run.setting].steps),
                resume=resume,
                checkpoint_every=None,
            )
            went_on = {
                number: tensors
                for number, tensors in traces[saver].steps()
                if step - 1 <= number < step + RESUMED_STEPS
            }
            labels = _label(traces[saver]), _label(resumed)
            steps, snapshot = dict(resumed.steps()), load_checkpoint(checkpoint).snapshot
            resumption = Resumed(*labels, step, went_on, steps, snapshot)
            findings.append(rung.compare(resumption))
            if findings[-1].mismatches:
                break
        return findings

    def _trained(self, planted: Planted, faulty: Trace) -> list[Finding]:
        """Train the faulty side without a trace; compare its losses and its counts."""
        out, seconds = self._runs.train(
            planted.side, planted.run, f"{planted.name}/training", planted.edits, TRAINED
        )
        label, rows = _label(faulty), read_losses(out / "losses.csv")
        loss_per = _spec(faulty).training.loss_per
        recorded = [recorded_step(step, each, loss_per) for step, each in faulty.steps()]
        summary = json.loads((out / "summary.json").read_text())
        return [
            find_in_exact_check(
                "untraced",
                (label, f"{label} untraced"),
                compare_untraced(label, recorded, rows),
            ),
            find_in_exact_check(
                "counting",
                (label, f"{label} counted anew"),
                compare_counts(label, recorded, rows, summary, seconds, WARM_UP),
            ),
        ]

    def _answers(self, planted: Planted, faulty: Trace) -> list[Finding]:
        """Let both sides answer from the correct side's weights, and compare."""
        (other,) = (name for name in FRAMEWORKS if name != planted.side)
        checkpoint = load_checkpoint(_oldest_checkpoint(planted.correct[other]))
        spec = checkpoint.spec
        longest = int(spec.text.target_limit) + 1
        findings: list[Finding] = []
        for number, probe in enumerate(answer_probes(checkpoint.snapshot, 5, 0.6, longest)):
            folder = self._runs.folder(f"{planted.name}/weights-{number}")
            folder.mkdir(parents=True, exist_ok=True)
            saved = save_checkpoint(folder, replace(checkpoint, snapshot=probe.snapshot))
            given = {
                _label(planted.correct[side]): self._answer(planted, side, saved, probe.search)
                for side in FRAMEWORKS
            }
            findings += AnswersRung(spec, probe.snapshot, checkpoint.step).compare(
                given, probe.search
            )
            if findings[-1].mismatches:
                break
        return findings

    def _answer(
        self, planted: Planted, side: str, checkpoint: Path, search: AnswerSettings
    ) -> SideAnswers:
        """Return the answers of a side; those of a correct side are asked for only once."""
        key = planted.run.name, side, search.name
        if side != planted.side:
            with self._lock:
                if key in self._answered:
                    return self._answered[key]
        name = f"{planted.name}/answers-{side}-{search.name.replace(' ', '-')}"
        given = self._runs.answer(
            side, planted.run, name, planted.edits_of(side), checkpoint, search
        )
        if side != planted.side:
            with self._lock:
                self._answered[key] = given
        return given


def _spec(trace: Trace) -> Spec:
    return Spec.from_json(trace.header["spec"])


def _label(trace: Trace) -> str:
    """Return what a comparison of one trace of each framework calls a side."""
    return labels_of([TrainedSide.from_json(trace.header)])[0]


def _oldest_checkpoint(trace: Trace) -> Path:
    """Return the oldest checkpoint that a recorded run has kept."""
    return newest_first(trace.folder.parent / "saved" / "checkpoints")[-1]
