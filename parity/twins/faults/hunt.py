"""`python -m parity faults`: plants every fault, runs the harness, and reports what it found.

Each setting is first trained unchanged by both sides. They must match there, or nothing found
later would mean anything. Then each fault is planted in one side's code, that side is trained
again, and its trace is compared with the other side's correct one.
"""

import shutil
import threading
import time
from collections.abc import Mapping
from functools import partial

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder, write_whole
from parity.base.progress import ProgressBar
from parity.compare.findings import find_in_exact_check
from parity.report.verdict_page import report_html
from parity.trace.reader import Trace
from parity.trace.rungs import CHECKS
from parity.twins.cli.options import FaultOptions
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values, run_values
from parity.twins.compare.verdict import Outcome, RunVerdict
from parity.twins.compare.whole_runs import compare_repeated, repeated
from parity.twins.faults.fault import Fault
from parity.twins.faults.finding import CHECK, MISMATCH, NUMERIC, REFUSED, REPEAT, Finding
from parity.twins.faults.listing import faults_named
from parity.twins.faults.side_runs import Planting, SideRuns, SmallRun
from parity.twins.faults.small_runs import SETTINGS
from parity.twins.launch.fork_server import ForkServer, fork_servers, results_of
from parity.twins.spec.frameworks import ALL, FRAMEWORKS, strategies_named
from parity.twins.trace.contents import tensor_names
from parity.twins.trace.side import TrainedSide, labels_of

# Longer than a user waits: what is confirmed must not depend on how busy the machine is.
_CAUSE_SECONDS = 600.0


class Hunt:
    """Plants faults and compares.

    Args:
      options: where to write, and what to keep.
      servers: framework -> its fork server.
    """

    def __init__(self, options: FaultOptions, servers: Mapping[str, ForkServer]):
        self._options, self._servers = options, servers
        make_folder(options.out)
        self._runs = SideRuns(options.out, servers)
        self._correct: dict[SmallRun, dict[str, Trace]] = {}
        self._locks: dict[SmallRun, threading.Lock] = {}
        self._lock = threading.Lock()

    def correct(self, run: SmallRun) -> dict[str, Trace]:
        """Return framework -> its trace of a run with nothing planted.

        Raises:
          SideFailed: if the two sides do not match there.
        """
        with self._one_at_a_time(run):
            if run not in self._correct:
                traces = {
                    side: self._runs.record(side, run, f"correct/{run.name}-{side}")
                    for side in FRAMEWORKS
                }
                verdict = compare_traces(list(traces.values()))
                if not verdict.matches:
                    raise SideFailed(
                        f"setting {run.setting!r}, {run.dtype}, {run.kernels} kernels: the "
                        "sides differ with nothing planted, first in "
                        f"{verdict.mismatches[0].place}",
                        1,
                    )
                self._correct[run] = traces
            return self._correct[run]

    def _default(self, planting: Planting) -> Trace:
        """Return a trace of the side's default strategy, trained from the same source."""
        side, run = planting.side, planting.run
        options = SETTINGS[run.setting].options(side, FRAMEWORKS[side].strategies.default)
        name = f"{planting.name}/default"
        return self._runs.record(side, run, name, planting.edits, **options)

    def _one_at_a_time(self, run: SmallRun) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(run, threading.Lock())

    def find(self, planting: Planting) -> Finding:
        """Plant one fault, and return what the harness finds of it."""
        started = time.monotonic()
        fault, side = planting.fault, planting.side
        finding = Finding(
            fault.name,
            side,
            planting.dtype,
            fault.topic,
            fault.cause,
            fault.setting,
            planting.kernels,
            planting.own_strategy,
            required=planting.required,
        )
        correct = self.correct(planting.run)
        try:
            verdict = self._verdict(planting, correct)
        except (NumericFailure, UsageError) as error:
            finding.found_by = NUMERIC if isinstance(error, NumericFailure) else REFUSED
            finding.story = finding.tensor = str(error)
            finding.blamed = [side] if side in str(error) else []
            finding.right_place = fault.is_at(str(error)) and bool(finding.blamed)
        except SideFailed as error:
            finding.story = f"broken: {error}"  # it crashed, so nothing was found
        else:
            if not verdict.matches:
                _describe(finding, fault, verdict)
                if self._options.pages:
                    self._write_page(planting, verdict)
        if not self._options.keep:
            shutil.rmtree(self._runs.folder(planting.name), ignore_errors=True)
        finding.seconds = time.monotonic() - started
        return finding

    def _verdict(self, planting: Planting, correct: Mapping[str, Trace]) -> RunVerdict:
        """Run the side that has the fault, and compare what it records with the correct side.

        A side with another strategy than its framework's default is compared with that one as
        well, trained from the same edited source: only if the default strategy trains as the
        oracle does, the mistake lies in the other strategy, and reports name it.

        Where the recorded steps match, the side is trained again. What must be found by another
        check of whole runs is planted in a run that makes that check.
        """
        side, fault, run = planting.side, planting.fault, planting.run
        # a cause must hold in all steps that are left, as in `parity run`
        left = SETTINGS[run.setting].steps
        if fault.check in ("answers", "resume", "untraced", "counting"):
            return self._runs.prove(planting, fault.check, left, _CAUSE_SECONDS)
        # names of unequal length: "order-of-sums" depends on that of the command line
        faulty = self._runs.record(side, run, f"{planting.name}/first", planting.edits)
        traces = [(dict(correct) | {side: faulty})[name] for name in FRAMEWORKS]
        if planting.own_strategy:
            traces.append(self._default(planting))
        verdict = compare_traces(traces, left, _CAUSE_SECONDS)
        return self._repeated(planting, faulty, verdict) if verdict.matches else verdict

    def _repeated(self, planting: Planting, faulty: Trace, verdict: RunVerdict) -> RunVerdict:
        """Train the faulty side again: a correct side would compute the same bits."""
        name = f"{planting.name}/second"
        again = self._runs.record(planting.side, planting.run, name, planting.edits)
        (label,) = labels_of([TrainedSide.from_json(faulty.header)])
        names, found = tensor_names(planting.run.spec), None
        for (step, first), (_, second) in zip(faulty.steps(), again.steps(), strict=True):
            found = found or compare_repeated(label, step, first, second, names)
        both = label, repeated(label)
        return verdict.with_checks([find_in_exact_check("repeat", both, found)])

    def _write_page(self, planting: Planting, verdict: RunVerdict) -> None:
        fault = planting.fault
        spec = SETTINGS[fault.setting].spec.replace(dtype=verdict.dtype)
        outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
        values = report_values(outcome, fault.setting, f"planted: {fault.cause}")
        pages = self._options.out / "pages"
        make_folder(pages)
        write_whole(pages / f"{planting.name}.html", report_html(values).encode())


def _describe(finding: Finding, fault: Fault, verdict: RunVerdict) -> None:
    """Write into the finding what the harness says of a mismatch."""
    first = run_values(verdict)["first_mismatch"]
    finding.found_by, finding.story = _found_by(first["rung"]), first["story"]
    finding.rung, finding.tensor, finding.step = first["rung"], first["tensor"], first["step"]
    finding.nearest = first["nearest_to_loss"] or ""
    departing = {label: verdict.sides[label] for label in verdict.departing()}
    finding.blamed = sorted({departed.framework for departed in departing.values()})
    finding.strategies = sorted(
        departed.strategy
        for label, departed in departing.items()
        if departed.strategy in label.split()
    )
    right_side = finding.blamed == [finding.side]
    if finding.rung == "batch":
        # the oracle reads the same batches as the sides: it cannot say which of them is wrong
        right_side = right_side or not finding.blamed
    if finding.rung in CHECKS:
        # the same of the batches that are evaluated, of questions, and of a checkpoint that one
        # side has written and the other has read: then both are named
        right_side = finding.side in finding.blamed
    finding.right_place = (
        fault.is_at(finding.nearest or finding.tensor)
        and right_side
        and finding.is_strategy_named
        and fault.check in ("", finding.rung)
    )
    finding.confirmed = [cause.sentence for cause in verdict.confirmed]
    finding.confirmed_faults = sorted(
        {fault for cause in verdict.confirmed for fault in cause.faults}
    )


def _found_by(rung: str) -> str:
    if rung == "repeat":
        return REPEAT
    return CHECK if rung in CHECKS else MISMATCH


def plantings(options: FaultOptions) -> list[Planting]:
    """Return which faults the options ask for, in which sides, precisions and kernels.

    Raises:
      UsageError: for a fault that is not in the catalogue, or a strategy that no framework has.
    """
    chosen = {
        (framework, entry.name)
        for framework, entries in strategies_named(options.strategy or (ALL,)).items()
        for entry in entries
    }
    found = []
    for number, fault in enumerate(faults_named(options.only)):
        places = [
            (side, kernels)
            for kernels in options.kernels
            for side in options.frameworks
            if side in fault.edits_for(kernels)
            and (side, SETTINGS[fault.setting].strategy(side)) in chosen
        ]
        if options.once and places:
            places = [places[number % len(places)]]
        found += [
            Planting(fault, side, dtype, kernels)
            for side, kernels in places
            for dtype in options.dtype
            if SETTINGS[fault.setting].can_train(side, dtype)
            if dtype in fault.dtypes or not options.once
        ]
    return found


def hunt(options: FaultOptions) -> list[Finding]:
    """Plant the faults that the options ask for; return the findings in the same order.

    Raises:
      UsageError: for a fault that is not in the catalogue, a strategy that no framework has, or
        options that leave nothing to plant.
      SideFailed: if the sides do not match with nothing planted.
    """
    planned = plantings(options)
    if not planned:
        raise UsageError(
            "no fault is planted with these --only, --frameworks, --strategy and --kernels; "
            "allowed: what --list-only shows, and --kernels fast,plain"
        )
    with fork_servers() as servers, ProgressBar("planting", len(planned), "fault") as progress:
        hunting = Hunt(options, servers)
        calls = [partial(hunting.find, planting) for planting in planned]
        findings = []
        with results_of(calls, servers.values(), options.jobs) as results:
            for finding in results:
                findings.append(finding)
                progress.update()
    return findings
