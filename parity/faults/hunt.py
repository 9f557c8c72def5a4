"""`python -m parity faults`: plants every fault, runs the harness, says what it found.

Each setting is first run as it is, on both sides: they must match, or nothing found afterwards
would mean anything. Then each fault is planted in a copy of the project, the side is trained
from that copy, and its trace held against the other side's sound one.
"""

import itertools
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder, write_whole
from parity.base.progress import Counter
from parity.cli.options import FaultOptions
from parity.compare.ladder import Verdict, climb
from parity.compare.outcome import Outcome
from parity.compare.signatures import likely_causes, signature
from parity.faults.catalogue import CATALOGUE
from parity.faults.fault import Fault, plant
from parity.faults.settings import SETTINGS, STEPS, write_texts
from parity.launch.fork_server import ForkServer
from parity.launch.processes import FRAMEWORKS, ROOT
from parity.launch.recording import record
from parity.report.html import report_html
from parity.report.values import report_values
from parity.trace.trace import Trace

SAVED = ROOT / "parity" / "faults" / "signatures.json"

# How a fault came to light.
MISMATCH, NUMERIC, REFUSED, REPEAT = "mismatch", "not finite", "refused", "another run differs"


@dataclass
class Finding:
    """What the harness made of one planted fault.

    Attributes:
      fault, side, dtype, topic, cause: what was planted, where, and in which precision.
      setting: the run it was planted in.
      how: in which way it was found; empty if it was not.
      rung, tensor, step: what was named first.
      nearest: of wrong gradients, which was said to be the first on the way down from the loss.
      blamed: the sides that were said to depart from the oracle.
      right: whether the named tensor (or message) is the planted one, and the side too.
      story: what the harness said.
      likely: the catalogue's faults that the mismatch was said to look like.
      signature: what the mismatch looked like.
      owed: whether it has to be found in this precision.
      seconds: that it took.
    """

    fault: str
    side: str
    dtype: str
    topic: str
    cause: str
    setting: str
    how: str = ""
    rung: str = ""
    tensor: str = ""
    step: int | None = None
    nearest: str = ""
    blamed: list[str] = field(default_factory=list)
    right: bool = False
    story: str = ""
    likely: list[str] = field(default_factory=list)
    signature: dict[str, Any] | None = None
    owed: bool = True
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        """Return whether the harness found the fault."""
        return bool(self.how)


class Hunt:
    """Runs the catalogue.

    Args:
      options: which faults, sides and precisions, and where to write.
      servers: framework -> its fork server.
    """

    def __init__(self, options: FaultOptions, servers: Mapping[str, ForkServer]):
        self._options, self._servers = options, servers
        make_folder(options.out)
        self._texts = write_texts(options.out / "texts")
        self._sound: dict[tuple[str, str, str], Trace] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def sound(self, setting: str, dtype: str) -> dict[str, Trace]:
        """Return the traces of a setting run as it is, side -> trace.

        Raises:
          SideFailed: if the two sides do not match there.
        """
        with self._lock:
            lock = self._locks.setdefault((setting, dtype), threading.Lock())
        with lock:
            if (setting, dtype, FRAMEWORKS[0]) not in self._sound:
                traces = [
                    self._record(side, setting, dtype, ROOT, "sound") for side in FRAMEWORKS
                ]
                verdict = climb(traces)
                if not verdict.matches:
                    raise SideFailed(
                        f"setting {setting!r}, {dtype}: the sides differ with nothing planted, "
                        f"first in {verdict.mismatches[0].place}",
                        1,
                    )
                for side, trace in zip(FRAMEWORKS, traces, strict=True):
                    self._sound[setting, dtype, side] = trace
            return {side: self._sound[setting, dtype, side] for side in FRAMEWORKS}

    def find(self, fault: Fault, side: str, dtype: str) -> Finding:
        """Plant one fault, and return what the harness makes of it."""
        started = time.monotonic()
        found = Finding(
            fault.name, side, dtype, fault.topic, fault.cause, fault.setting,
            owed=dtype in fault.dtypes,
        )  # fmt: skip
        traces = self.sound(fault.setting, dtype)
        folder = self._options.out / "copies" / dtype / f"{fault.name}-{side}"
        plant(fault, side, folder)
        try:
            faulty = self._record(side, fault.setting, dtype, folder, fault.name)
            verdict = climb([faulty if name == side else traces[name] for name in FRAMEWORKS])
        except (NumericFailure, UsageError) as error:
            found.how = NUMERIC if isinstance(error, NumericFailure) else REFUSED
            found.story = found.tensor = str(error)
            found.blamed = [side] if side in str(error) else []
            found.right = fault.right(str(error)) and bool(found.blamed)
        except SideFailed as error:
            found.story = f"broken: {error}"  # it crashed: nothing has been found
        else:
            self._read(verdict, fault, found)
            if found.caught and self._options.pages:
                self._write_page(verdict, found)
            if not found.caught:
                self._repeat(faulty, fault, folder, found)
        if not self._options.keep:
            shutil.rmtree(folder)
            for name in (fault.name, f"{fault.name}.2"):
                shutil.rmtree(self._trace(side, fault.setting, dtype, name), ignore_errors=True)
        found.seconds = time.monotonic() - started
        return found

    def _read(self, verdict: Verdict, fault: Fault, found: Finding) -> None:
        if verdict.matches:
            return
        values = report_values(self._outcome(fault, verdict), "-", "")
        first = values["first_mismatch"]
        found.how = MISMATCH
        found.rung, found.tensor, found.step = first["rung"], first["tensor"], first["step"]
        found.blamed = sorted({verdict.sides[label].framework for label in verdict.departing()})
        # of what was read there is no oracle, and no side to blame
        right_side = found.blamed == [found.side] or (
            found.rung == "batch" and not found.blamed
        )
        found.nearest = first["nearest_to_loss"] or ""
        found.right = fault.right(found.nearest or found.tensor) and right_side
        found.story = first["story"]
        label = next(
            (
                label
                for label in verdict.evidence
                if verdict.sides[label].framework == found.side
            ),
            None,
        )
        if label is not None:
            seen, network = signature(verdict.evidence[label]), verdict.evidence[label].network
            found.signature = seen.to_json()
            found.likely = [cause.fault for cause in likely_causes(seen, network)]

    def _repeat(self, once: Trace, fault: Fault, folder: Path, found: Finding) -> None:
        """Run the side again: a sound one gives the same bits."""
        again = self._record(found.side, fault.setting, found.dtype, folder, f"{fault.name}.2")
        for before, after in zip(once.index(), again.index(), strict=True):
            if before != after:
                names = [
                    name
                    for name, digest in before["sha256"].items()
                    if after["sha256"].get(name) != digest
                ]
                found.how, found.rung, found.step = REPEAT, "repeat", before["step"]
                found.tensor = names[0]
                found.blamed, found.right = [found.side], fault.right(names[0])
                found.story = (
                    f"two runs of {found.side} differ in {names[0]}, step {found.step}"
                )
                return

    def _outcome(self, fault: Fault, verdict: Verdict) -> Outcome:
        spec = SETTINGS[fault.setting].spec.replace(dtype=verdict.dtype)
        return Outcome(spec, verdict.sides, verdicts=[verdict])

    def _write_page(self, verdict: Verdict, found: Finding) -> None:
        outcome = self._outcome(_named(found.fault), verdict)
        report = report_values(outcome, found.setting, f"planted: {found.cause}")
        make_folder(self._options.out / "pages")
        name = f"{found.fault}-{found.side}-{found.dtype}.html"
        write_whole(self._options.out / "pages" / name, report_html(report).encode())

    def _trace(self, side: str, setting: str, dtype: str, name: str) -> Path:
        run = f"{setting.replace(', ', '-')}-{dtype}"
        return self._options.out.resolve() / "traces" / run / f"{name}-{side}"

    def _record(self, side: str, setting: str, dtype: str, root: Path, name: str) -> Trace:
        """Train a side and return its trace.

        Raises:
          UsageError, NumericFailure, SideFailed: with its message, if it does not end well.
        """
        run = SETTINGS[setting]
        return record(
            self._servers[side],
            run.spec.replace(dtype=dtype),
            self._trace(side, setting, dtype, name),
            root=root,
            data=self._texts[run.spec.network],
            cache=self._options.out / "cache",
            replicas=run.replicas,
            steps=STEPS,
        )


def hunt(options: FaultOptions) -> list[Finding]:
    """Plant the faults that were asked for, and return what was found, in their order.

    Raises:
      UsageError: for a fault that is not in the catalogue.
      SideFailed: if a run with nothing planted does not match.
    """
    planned = [
        (fault, side, dtype)
        for number, fault in enumerate(chosen(options.only))
        for side in _sides_of(fault, number, options)
        for dtype in options.dtype
        if not (options.once and dtype not in fault.dtypes)
    ]
    findings: dict[int, Finding] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-")))
        servers = {
            side: stack.enter_context(ForkServer(side, folder / side)) for side in FRAMEWORKS
        }
        hunting = Hunt(options, servers)
        progress = stack.enter_context(Counter("planting", len(planned), "fault"))
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        futures = [pool.submit(hunting.find, *each) for each in planned]
        try:
            for number, future in enumerate(futures):
                findings[number] = future.result()
                progress.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [findings[number] for number in sorted(findings)]


def _sides_of(fault: Fault, number: int, options: FaultOptions) -> list[str]:
    sides = [side for side in options.sides if side in fault.edits]
    return sides[number % len(sides) :][:1] if options.once and sides else sides


def chosen(names: Sequence[str]) -> list[Fault]:
    """Return the faults of some names, or all.

    Raises:
      UsageError: for a name that is not in the catalogue.
    """
    if not names:
        return list(CATALOGUE)
    return [_named(name) for name in names]


def _named(name: str) -> Fault:
    for fault in CATALOGUE:
        if fault.name == name:
            return fault
    raise UsageError(
        f"--only is {name!r}; allowed: {', '.join(fault.name for fault in CATALOGUE)}"
    )


def catalogue_text() -> str:
    """Return the table of all faults."""
    rows = [
        [fault.name, fault.topic, fault.cause, ", ".join(fault.edits), ", ".join(fault.where)]
        for fault in CATALOGUE
    ]
    headers = ["fault", "topic", "what is wrong", "planted in", "to be found in"]
    return tabulate(rows, headers, tablefmt="simple", disable_numparse=True)


def fault_text(name: str) -> str:
    """Return what a fault is and what it changes, side by side.

    Raises:
      UsageError: for a fault that is not in the catalogue.
    """
    fault = _named(name)
    lines = [f"{fault.name}: {fault.cause}", f"to be found in {', '.join(fault.where)}"]
    for side in fault.edits:
        with tempfile.TemporaryDirectory(prefix="parity-") as folder:
            lines += ["", f"planted in {side}:", plant(fault, side, Path(folder) / "copy")]
    return "\n".join(lines)


def passed(findings: Iterable[Finding]) -> bool:
    """Return whether every fault that has to be found was."""
    return all(finding.caught for finding in findings if finding.owed)


def findings_text(findings: Sequence[Finding]) -> str:
    """Return the table of what was found, and the sums."""
    rows = [
        [
            finding.fault,
            finding.side,
            finding.dtype,
            finding.how or ("NOT FOUND" if finding.owed else "below rounding"),
            finding.rung or "-",
            "-" if finding.step is None else finding.step,
            _short(finding.nearest or finding.tensor) or "-",
            ("yes" if finding.right else "NO") if finding.caught else "-",
        ]
        for finding in findings
    ]
    headers = [
        "fault",
        "planted in",
        "precision",
        "found by",
        "rung",
        "step",
        "named first",
        "right\nplace",
    ]
    lines = [tabulate(rows, headers, tablefmt="simple", disable_numparse=True), ""]
    for dtype, group in itertools.groupby(
        sorted(findings, key=lambda finding: finding.dtype, reverse=True),
        key=lambda finding: finding.dtype,
    ):
        mine = list(group)
        caught = [finding for finding in mine if finding.caught]
        right = sum(finding.right for finding in caught)
        named = sum(finding.fault in finding.likely for finding in caught)
        compared = sum(finding.how == MISMATCH for finding in caught)
        lines.append(
            f"{dtype}: {len(caught)} of {len(mine)} found, {right} of {len(caught)} at the "
            f"right place; among the likely causes: {named} of {compared} mismatches"
        )
    faults = {finding.fault for finding in findings}
    lines.append(
        f"{len(faults)} faults; {'all found' if passed(findings) else 'NOT ALL FOUND'}"
    )
    return "\n".join(lines)


def _short(message: str) -> str:
    return message if len(message) <= 72 else message[:69] + "..."


def findings_values(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what was found as plain values."""
    return {
        "all_found": passed(findings),
        "findings": [asdict(finding) | {"caught": finding.caught} for finding in findings],
    }


def save_signatures(findings: Iterable[Finding]) -> int:
    """Write the signatures of the faults that were found beside the catalogue; count them.

    One per fault and look: in another side or precision it may look otherwise.
    """
    entries: dict[str, dict[str, Any]] = {}
    for finding in findings:
        if finding.how == MISMATCH and finding.signature and finding.right:
            entry = {
                "fault": finding.fault,
                "cause": finding.cause,
                "topic": finding.topic,
                "network": SETTINGS[finding.setting].spec.network,
                "signature": finding.signature,
            }
            entries[json.dumps(entry, sort_keys=True)] = entry
    content = json.dumps(list(entries.values()), indent=1, ensure_ascii=False) + "\n"
    write_whole(SAVED, content.encode())
    return len(entries)
