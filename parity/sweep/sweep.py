"""`python -m parity sweep`: random valid runs of both sides, none of which may mismatch."""

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder, write_whole
from parity.base.progress import Counter
from parity.cli.options import SweepOptions
from parity.compare.ladder import ONE_STEP, ORACLE, Verdict, climb
from parity.compare.outcome import Outcome
from parity.compare.tensors import Distance
from parity.launch.fork_server import ForkServer
from parity.launch.recording import record
from parity.report.values import report_values
from parity.spec.frameworks import FRAMEWORKS
from parity.sweep.random_runs import DrawnRun, draw
from parity.trace.tolerances import ONE_STEP_TIMES, TABLE
from parity.trace.trace import RUNGS

# How the two that were compared stand to each other.
BETWEEN, FREE, STEP = "between the sides", "from the oracle", "from one step of the oracle"


@dataclass
class Worst:
    """The worst distance of one rung over many runs.

    Attributes:
      absolute, relative: as of `Distance`.
      where: of `relative`: number of the run, step, tensor and index.
      used: largest share of what is allowed; None if never judged.
      used_in: number of the run that has it.
    """

    absolute: float = 0.0
    relative: float = 0.0
    where: dict[str, Any] | None = None
    used: float | None = None
    used_in: int | None = None

    def add(self, number: int, distance: Mapping[str, Any]) -> None:
        """Take in a run's distance, as `Distance.to_json` has it."""
        self.absolute = max(self.absolute, distance["worst_absolute"])
        if self.where is None or distance["worst_relative"] > self.relative:
            self.relative = distance["worst_relative"]
            if distance["where"]:
                self.where = {"run": number, **distance["where"]}
        used = distance["used"]
        if used is not None and (self.used is None or used > self.used):
            self.used, self.used_in = used, number


@dataclass
class Sweep:
    """What the runs of a sweep came to.

    Attributes:
      seed: that they were drawn from.
      results: number -> what came of that run: the run, "how" it ended ("match" or not),
        "story" if it was no match, "worst": dtype, kind of comparison and rung -> distance.
    """

    seed: int
    results: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Return the runs that were no match."""
        return [
            self.results[n] for n in sorted(self.results) if self.results[n]["how"] != "match"
        ]

    def worst(self) -> dict[str, dict[str, dict[str, Worst]]]:
        """Return dtype -> rung -> kind of comparison -> the worst distance of all runs."""
        found: dict[str, dict[str, dict[str, Worst]]] = {}
        for number, result in sorted(self.results.items()):
            of_dtype = found.setdefault(result["spec"]["training"]["dtype"], {})
            for kind, rungs in result["worst"].items():
                for rung, distance in rungs.items():
                    place = of_dtype.setdefault(rung, {})
                    place.setdefault(kind, Worst()).add(number, distance)
        return found


def sweep(options: SweepOptions) -> Sweep:
    """Draw the runs that were asked for, run them on both sides, and return what came of them.

    Every result is kept in runs.jsonl as soon as it is there. A sweep that starts at a later
    run than 0 goes on with what is kept there of the earlier ones.

    Raises:
      UsageError: if hypothesis is not installed, or the runs kept are of another seed.
    """
    make_folder(options.out)
    numbers = options.only or range(options.start, options.count)
    found = Sweep(options.seed)
    log = options.out / "runs.jsonl"
    if not options.only and options.start:
        found.results = _kept(log, options)
    lines = [json.dumps(result) + "\n" for result in found.results.values()]
    runs = [draw(options.seed, number) for number in numbers]
    write_whole(log, "".join(lines).encode())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parity-")))
        servers = {
            side: stack.enter_context(ForkServer(side, folder / side)) for side in FRAMEWORKS
        }
        file = stack.enter_context(log.open("a"))
        progress = stack.enter_context(Counter("sweeping", len(runs), "run"))
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        futures = [pool.submit(attempt, run, servers, options) for run in runs]
        try:
            for future in futures:
                result = future.result()
                found.results[result["number"]] = result
                file.write(json.dumps(result) + "\n")
                file.flush()
                progress.update(f"false alarms {len(found.alarms)}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def attempt(
    run: DrawnRun, servers: Mapping[str, ForkServer], options: SweepOptions
) -> dict[str, Any]:
    """Run a drawn run on both sides and compare; return what came of it, as plain values."""
    started = time.monotonic()
    folder = options.out / "runs" / f"{run.number:06d}"
    if folder.exists():
        shutil.rmtree(folder)
    text = run.write_text(folder / "text")
    result: dict[str, Any] = {**run.to_json(), "how": "match", "story": "", "worst": {}}
    try:
        traces = [
            record(
                servers[side],
                run.spec,
                folder / side,
                data=text,
                cache=folder / "cache",
                replicas=run.replicas,
                steps=run.steps,
                **run.options,
            )
            for side in FRAMEWORKS
        ]
        verdict = climb(traces)
    except (NumericFailure, UsageError, SideFailed) as error:
        # drawn to be valid: what refuses it, or breaks off, has alarmed for nothing too
        result |= {"how": type(error).__name__, "story": str(error)}
    else:
        result["worst"] = _by_kind(verdict)
        result["amplified"] = verdict.amplified is not None
        if not verdict.matches:
            outcome = Outcome(run.spec, verdict.sides, verdicts=[verdict])
            values = report_values(outcome, "-", "")
            result |= {"how": "mismatch", "story": values["first_mismatch"]["story"]}
    if result["how"] == "match" and not options.keep:
        shutil.rmtree(folder)
    return result | {"seconds": time.monotonic() - started}


def _by_kind(verdict: Verdict) -> dict[str, dict[str, Any]]:
    """Return kind of comparison -> rung -> the worst distance."""
    found: dict[str, dict[str, Distance]] = {}
    for (_, b), rungs in verdict.pairs.items():
        kind = {ORACLE: FREE, ONE_STEP: STEP}.get(b, BETWEEN)
        for rung, distance in rungs.items():
            found.setdefault(kind, {}).setdefault(rung, Distance()).add(distance)
    return {
        kind: {rung: distance.to_json() for rung, distance in rungs.items()}
        for kind, rungs in found.items()
    }


def _kept(log: Path, options: SweepOptions) -> dict[int, dict[str, Any]]:
    """Return the results of the runs before the first one to be done."""
    found = {}
    try:
        lines = log.read_text().splitlines()
    except OSError as error:
        raise UsageError(
            f"--start is {options.start}, but {log} cannot be read: {error.strerror}"
        ) from None
    for line in lines:
        try:
            result = json.loads(line)
        except ValueError:
            break  # the sweep was killed while it wrote this one
        if result["seed"] != options.seed:
            raise UsageError(
                f"{log}: holds runs of --seed {result['seed']}; allowed: {options.seed}, or "
                "another --out"
            )
        if result["number"] < options.start:
            found[result["number"]] = result
    return found


def sweep_values(found: Sweep) -> dict[str, Any]:
    """Return what a sweep found as plain values."""
    return {
        "seed": found.seed,
        "runs": len(found.results),
        "false_alarms": len(found.alarms),
        "alarms": found.alarms,
        "amplified": [n for n, result in found.results.items() if result.get("amplified")],
        "worst": {
            dtype: {
                rung: {kind: vars(worst) for kind, worst in kinds.items()}
                for rung, kinds in rungs.items()
            }
            for dtype, rungs in found.worst().items()
        },
    }


def _allowed(dtype: str, rung: str, kind: str) -> str:
    if kind == STEP and rung in ONE_STEP_TIMES:
        return f"{ONE_STEP_TIMES[rung]:g} x rounding"
    return str(TABLE[dtype, rung]) if dtype == "float64" or rung not in ONE_STEP_TIMES else "-"


def sweep_text(found: Sweep) -> str:
    """Return the table of the worst distances, and the story of every false alarm."""
    rows = []
    order = list(dict.fromkeys(RUNGS.values()))
    for dtype, rungs in sorted(found.worst().items(), reverse=True):
        for rung in sorted(rungs, key=order.index):
            for kind, worst in rungs[rung].items():
                where = worst.where
                rows.append(
                    [
                        dtype,
                        rung,
                        kind,
                        f"{worst.relative:.2g}",
                        f"{where['tensor']}, run {where['run']}, step {where['step']}"
                        if where and worst.relative
                        else "-",
                        _allowed(dtype, rung, kind),
                        "-" if worst.used is None else f"{worst.used:.3f}",
                        "-" if not worst.used else worst.used_in,
                    ]
                )
    headers = [
        "precision",
        "rung",
        "distance",
        "worst over\nlargest",
        "where",
        "allowed",
        "most used\nof it",
        "run",
    ]
    lines = [tabulate(rows, headers, tablefmt="simple", disable_numparse=True), ""]
    for alarm in found.alarms:
        number, seed = alarm["number"], found.seed
        lines += [
            f"run {number}: {alarm['how']}",
            *(f"    {line}" for line in alarm["story"].splitlines()),
            f"    again: python -m parity sweep --seed={seed} --only={number} --keep",
            "",
        ]
    lines.append(
        f"{len(found.results)} runs of seed {found.seed}: {len(found.alarms)} false alarms"
    )
    return "\n".join(lines)
