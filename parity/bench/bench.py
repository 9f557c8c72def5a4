"""`python -m parity bench`: how fast each side trains, in real tokens per second.

Runs are taken in turn (A B C A B C ...), each alone on the machine and in a process of its own,
so that a machine whose speed drifts slows all alike. A run's first steps are left out. Before
anything is timed, a few steps of every configuration of the two sides are held against the
oracle; the peers' losses must be those of the sides.
"""

import csv
import itertools
import json
import platform
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.cores import usable_cores
from parity.base.errors import Mismatch
from parity.base.files import make_folder, write_whole
from parity.base.machine import measured_here
from parity.base.progress import Counter
from parity.bench.cases import Case, cases_of, check_installed
from parity.bench.page import bench_html
from parity.bench.ratios import (
    against,
    check_losses,
    median_of,
    scaling,
    summary_of,
    worst_of,
)
from parity.bench.text import bench_text, sizes_text
from parity.bench.zipf_text import generated
from parity.cli.options import BenchOptions
from parity.compare.ladder import climb
from parity.compare.outcome import Outcome
from parity.launch.processes import SideProcess
from parity.report.values import report_text, report_values
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec
from parity.trace.trace import Trace
from parity.training.flops import product_limit

_CHECKED = 2  # steps of every configuration that are held against the oracle


class Measured(NamedTuple):
    """What the runs of a benchmark gave.

    Attributes:
      readings: label -> tokens/s of each run.
      summaries: label -> summary.json of each run.
      losses: label -> losses of its last run.
      limits: rate of large matrix products before each round, FLOP/s.
    """

    readings: dict[str, list[float]]
    summaries: dict[str, list[dict[str, Any]]]
    losses: dict[str, list[float]]
    limits: list[float]


def bench(spec: Spec, options: BenchOptions, command: str) -> dict[str, Any]:
    """Time all sides and replica counts in turn, and write bench.json, .txt and .html.

    Args:
      command: what the user typed, for the record.

    Returns:
      The measurements as plain values: `cases` (label -> side, replicas, threads), `readings`
      (label -> tokens/s of each run), `throughput` (label -> median and spread), `scaling`
      (framework -> replicas -> ratio to the first), `against` (side -> peer -> ratio), and
      more by label: see the table.

    Raises:
      UsageError: for input that cannot be used, as the sides found it; for a peer that is not
        installed, or trains something else.
      Mismatch: if the sides do not match; nothing is timed then.
    """
    cores = usable_cores()
    cases = cases_of(spec, options, cores)
    check_installed({case.name for case in cases})
    make_folder(options.out)
    data = options.data
    if data is None:
        spec, data = generated(spec, options.steps, options.out)
    if options.check:
        _check_parity(spec, options, data, cases)
    readings: dict[str, list[float]] = {case.label: [] for case in cases}
    summaries: dict[str, list[dict[str, Any]]] = {case.label: [] for case in cases}
    losses: dict[str, list[float]] = {}
    limits: list[float] = []
    runs = list(itertools.product(range(options.rounds), cases))
    with Counter("timing", len(runs), "run") as progress:
        for _, case in runs:
            if case == cases[0]:
                limits.append(product_limit(spec.training.dtype, cores))
            summary, losses[case.label] = _timed_run(spec, options, data, case)
            readings[case.label].append(summary["tokens_per_second"]["median"])
            summaries[case.label].append(summary)
            progress.update(f"{case.label} {readings[case.label][-1]:,.0f} tokens/s")
    values = _values(spec, options, cases, Measured(readings, summaries, losses, limits))
    values |= {"command": command}
    content = json.dumps(values, indent=2).encode() + b"\n"
    write_whole(options.out / "bench.json", content)
    page = bench_html(values, sizes_text(values["spec"]))
    write_whole(options.out / "bench.html", page.encode())
    write_whole(options.out / "bench.txt", bench_text(values).encode() + b"\n")
    return values


def _values(
    spec: Spec, options: BenchOptions, cases: list[Case], found: Measured
) -> dict[str, Any]:
    """Return what was measured as plain values; see `bench`."""
    readings, summaries, limit = found.readings, found.summaries, max(found.limits)
    return {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "cases": {case.label: vars(case) | {"title": case.title} for case in cases},
        "checked_steps": _CHECKED if options.check else 0,
        "losses_apart": check_losses(found.losses, cases),
        "threads": options.threads,
        **measured_here(),
        "steps": options.steps,
        "rounds": options.rounds,
        "readings": readings,
        "throughput": {label: summary_of(each) for label, each in readings.items()},
        "product_limit": limit,
        "share_of_limit": {
            label: median_of(each, "product_flops_per_second") / limit
            for label, each in summaries.items()
        },
        "waiting_share": worst_of(summaries, "waiting_share"),
        "seconds_to_first_step": {
            label: median_of(each, "seconds_to_first_step") for label, each in summaries.items()
        },
        "peak_memory": {
            label: [max(each) for each in zip(*(s["peak_memory"] for s in each), strict=True)]
            for label, each in summaries.items()
        },
        "padding": next(iter(summaries.values()))[0]["padding"],
        "scaling": scaling(readings, cases),
        "against": against(readings, cases),
        "versions": {
            name: version
            for each in summaries.values()
            for name, version in each[0]["versions"].items()
        },
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _check_parity(spec: Spec, options: BenchOptions, data: Path, cases: list[Case]) -> None:
    """Hold a few recorded steps of every configuration of the sides against the oracle.

    Raises:
      Mismatch: if they do not match.
    """
    traces, by_threads = [], dict[int, list[Trace]]()
    for case in cases:
        if case.name in FRAMEWORKS:
            folder = options.out / "checked" / case.label
            shutil.rmtree(folder, ignore_errors=True)
            _run(spec, options, data, case, trace=folder, steps=_CHECKED, decode=0)
            traces.append(Trace(folder))
            by_threads.setdefault(case.threads, []).append(traces[-1])
    for alike in by_threads.values():
        verdict = climb(alike)
        if not verdict.matches:
            outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
            print(report_text(report_values(outcome, options.preset or "-", "")))
            raise Mismatch("the sides do not match in what is to be timed: nothing is timed")
    for trace in traces:
        shutil.rmtree(trace.folder)


def _timed_run(
    spec: Spec, options: BenchOptions, data: Path, case: Case
) -> tuple[dict[str, Any], list[float]]:
    """Return the summary of a run, and its losses."""
    out = options.out / "runs" / case.label
    shutil.rmtree(out, ignore_errors=True)
    _run(spec, options, data, case, steps=options.steps, out=out)
    summary = json.loads((out / "summary.json").read_text())
    with (out / "losses.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    shutil.rmtree(out)
    return dict(summary), losses


def _run(spec: Spec, options: BenchOptions, data: Path, case: Case, **more: Any) -> None:
    of_side: dict[str, Any] = {}
    if case.name in FRAMEWORKS:
        of_side = {"strategy": case.strategy or None, "kernels": case.kernels}
    with SideProcess(
        case.name,
        spec,
        options.out / "logs" / f"{case.label}.log",
        preset=options.preset,
        data=data,
        cache=options.cache,
        replicas=case.replicas,
        threads=case.threads,
        **of_side,
        device=options.device,
        debug=options.debug,
        **more,
    ) as side:
        side.wait()
