"""`python -m parity sweep`: random valid runs of both sides; every one of them must match."""

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from parity.base.errors import NumericFailure, SideFailed, UsageError
from parity.base.files import make_folder, read_file, write_whole
from parity.base.progress import ProgressBar
from parity.base.text import verified, with_checksum
from parity.compare.tensors import ONE_STEP
from parity.twins.cli.options import SweepOptions
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import run_values
from parity.twins.compare.verdict import RunVerdict
from parity.twins.launch.fork_server import ForkServer, fork_servers, record, results_of
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.strategies import StrategySettings
from parity.twins.sweep.random_runs import DrawnRun, draw
from parity.twins.sweep.random_strategies import comparable_choices
from parity.twins.sweep.results import Sweep


def sweep(options: SweepOptions) -> Sweep:
    """Draw the runs that the options ask for, train them on both sides, and compare.

    Each result is written to runs.jsonl at once. A sweep that starts later than at run 0
    continues with the earlier runs' results from there.

    Raises:
      UsageError: if hypothesis is not installed, if runs.jsonl has runs of another seed or of
        other strategies, for an unknown strategy, or for strategies that cannot be compared.
    """
    choices = comparable_choices(parse_strategies(options.strategy, StrategySettings()))
    make_folder(options.out)
    numbers = options.only or range(options.start, options.count)
    found = Sweep(options.seed, list(options.strategy))
    log = options.out / "runs.jsonl"
    if not options.only and options.start:
        found.results = _earlier_results(log, options)
    lines = [with_checksum(result) + "\n" for result in found.results.values()]
    runs = [draw(options.seed, number, choices) for number in numbers]
    write_whole(log, "".join(lines).encode())
    with (
        fork_servers() as servers,
        log.open("a") as file,
        ProgressBar("sweeping", len(runs), "run") as progress,
    ):
        calls = [partial(attempt, run, servers, options) for run in runs]
        with results_of(calls, servers.values(), options.jobs) as results:
            for result in results:
                found.results[result["number"]] = result
                file.write(with_checksum(result) + "\n")
                file.flush()
                progress.update(f"false alarms {len(found.alarms)}")
    return found


def attempt(
    run: DrawnRun, servers: Mapping[str, ForkServer], options: SweepOptions
) -> dict[str, Any]:
    """Train both sides as drawn and compare them; return the result as plain values."""
    started = time.monotonic()
    kernels = options.kernels[run.number % len(options.kernels)]
    folder = options.out / "runs" / f"{run.number:06d}"
    if folder.exists():
        shutil.rmtree(folder)
    text = run.write_text(folder / "text")
    result = {**run.to_json(), "kernels": kernels, "how": "match", "story": "", "used": {}}
    result |= _drawn_from(options)
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
                kernels=kernels,
                strategy=strategy.name,
                **strategy.settings,
                **run.options,
            )
            for side, strategy in run.strategies.items()
        ]
        verdict = compare_traces(traces)
    except (NumericFailure, UsageError, SideFailed) as error:
        # every drawn run is valid: to refuse it, or to stop, is a false alarm as well
        result |= {"how": type(error).__name__, "story": str(error)}
    else:
        result["used"] = _used(verdict)
        result["covered"] = {fact.name: fact.count for fact in verdict.coverage if fact.applies}
        if not verdict.matches:
            story = run_values(verdict)["first_mismatch"]["story"]
            result |= {"how": "mismatch", "story": story}
    if result["how"] == "match" and not options.keep:
        shutil.rmtree(folder)
    return result | {"seconds": time.monotonic() - started}


def _used(verdict: RunVerdict) -> dict[str, float]:
    """Return rung -> the largest share that a side used of what one step is allowed."""
    found: dict[str, float] = {}
    for (_, b), rungs in verdict.pairs.items():
        for rung, distance in rungs.items() if b == ONE_STEP else ():
            if distance.used is not None:
                found[rung] = max(distance.used, found.get(rung, 0.0))
    return found


def _earlier_results(log: Path, options: SweepOptions) -> dict[int, dict[str, Any]]:
    """Return the results in runs.jsonl of the runs before --start."""
    found, drawn_from = {}, _drawn_from(options)
    try:
        content = read_file(log)
    except OSError as error:
        raise UsageError(
            f"--start is {options.start}, but {log} cannot be read: {error.strerror}"
        ) from None
    # the sweep may have been killed while it wrote the last line
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            result = verified(line)
            number, before = int(result["number"]), [result[name] for name in drawn_from]
        except (ValueError, TypeError, KeyError, OverflowError):
            raise UsageError(
                f"{log}: has runs of an earlier version, or is damaged; allowed: another --out"
            ) from None
        for had, (name, given) in zip(before, drawn_from.items(), strict=True):
            if had != given:
                raise UsageError(
                    f"{log}: has runs of --{name} {had}; allowed: {given}, or another --out"
                )
        if number < options.start:
            found[number] = result
    return found


def _drawn_from(options: SweepOptions) -> dict[str, Any]:
    """Return flag -> value of the flags that runs of the same numbers depend on."""
    return {"seed": options.seed, "strategy": ",".join(options.strategy) or "(none)"}
