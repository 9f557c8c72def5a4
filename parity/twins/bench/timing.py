"""`python -m parity bench`: how fast each side trains, in real tokens per second.

Configurations take turns (A B C A B C ...), and each run is a new process, alone on the
machine: if the machine's speed drifts, all are slowed alike. The first steps of a run are not
counted. Before anything is timed, a few steps of every configuration of both sides are compared
with the oracle, and all that are timed are recorded: the timed training must end with the same
weights. The losses of the peers must equal those of the sides.
"""

import csv
import hashlib
import json
import platform
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import Interrupted, MismatchError
from parity.base.files import check_output, make_folder
from parity.base.machine import measured_here, usable_cores
from parity.base.progress import ProgressBar, say
from parity.report.save import save_report
from parity.report.terminal import report_text
from parity.trace.reader import Trace
from parity.twins.bench.cases import BenchCase, cases_of, peers_left_out, strategy_cases
from parity.twins.bench.history import compare_with_history
from parity.twins.bench.product_rates import ProductRates, noise, product_rates
from parity.twins.bench.ratios import (
    check_losses,
    median_field,
    ratios_to_peers,
    scaling,
)
from parity.twins.bench.report import bench_html, bench_text, sizes_text
from parity.twins.bench.tables import strategy_rows
from parity.twins.cli.options import BenchOptions
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.values import report_values
from parity.twins.compare.verdict import Outcome
from parity.twins.launch.checkout import check_installed, not_installed
from parity.twins.launch.processes import PEERS, SideProcess, shared_options
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.trace.following import follow, wait_for_trace
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import newest_checkpoint
from parity.twins.training.flops import step_products

_CHECKED = 2  # number of steps of every configuration that are compared with the oracle


class Measurements(NamedTuple):
    """The measurements of all runs of a benchmark.

    Attributes:
      readings: label -> the speed of each run, in real tokens/s.
      summaries: label -> the content of each run's summary.json.
      losses: label -> the losses of its last run.
      rates: the rates of matrix products before the first round.
    """

    readings: dict[str, list[float]]
    summaries: dict[str, list[dict[str, Any]]]
    losses: dict[str, list[float]]
    rates: ProductRates


def bench(spec: Spec, options: BenchOptions, command: str) -> dict[str, Any]:
    """Time all sides and replica counts in turn, and write bench.json, .txt and .html.

    Args:
      spec: the network, its text and its training.
      options: what to time, and where to write.
      command: the command that the user typed, which is recorded.

    Returns:
      The measurements as plain values, most of them by the label of a configuration: `cases`
      (label -> side, replicas, threads), `readings` (label -> real tokens/s of each run),
      `throughput` (label -> median and spread), `scaling` (title -> replicas -> ratio to the
      first number of replicas), `against` (label of a side -> label of a peer -> ratio of their
      speeds), `strategies` (the rows of the table of strategies), `history` (what fell since an
      earlier benchmark; see `compare_with_history`), and more; see `_values`.

    Raises:
      UsageError: for input that a side cannot use; for a peer that is not installed, or whose
        losses show that it trains something else.
      MismatchError: if the sides do not match, and nothing is timed; or if what was timed is
        not the training that was compared.
    """
    cores = usable_cores()
    cases, left_out = cases_to_time(spec, options, cores)
    make_folder(options.out)  # before anything is timed
    check_output(options.history)
    noise_here = noise(cores)
    say(noise_here)
    data = options.data
    text = "generated" if data is None else str(data.resolve())
    if data is None:
        spec, data = write_zipf_text(spec, options.steps, options.out)
    recorded = _check_parity(spec, options, data, cases) if options.check else {}
    readings: dict[str, list[float]] = {case.label: [] for case in cases}
    summaries: dict[str, list[dict[str, Any]]] = {case.label: [] for case in cases}
    losses: dict[str, list[float]] = {}
    sides = dict.fromkeys(case.name for case in cases if not case.is_peer)
    rates = product_rates(spec.training.dtype, cores, sides, step_products(spec, cores))
    measurements = Measurements(readings, summaries, losses, rates)
    runs = cases * options.rounds
    more = {"command": command, "peers_left_out": left_out, "noise": noise_here}
    try:
        with ProgressBar("timing", len(runs), "run") as progress:
            for case in runs:
                summary, losses[case.label], digests = _timed_run(spec, options, data, case)
                check_timed(case.label, recorded.get(case.label, {}), digests)
                speed = summary["tokens_per_second"]["median"]
                summaries[case.label].append(summary)
                readings[case.label].append(speed)
                say(f"{case.label}: {speed:,.0f} tokens/s")
                progress.update(f"{case.label} {speed:,.0f} tokens/s")
    except (KeyboardInterrupt, Interrupted):
        if ended := ended_cases(cases, measurements):
            _write(options, _values(spec, options, ended, measurements) | more)
            say(f"stopped; what ended is in {options.out / 'bench.html'}")
        raise
    values = _values(spec, options, cases, measurements) | more
    values["history"] = compare_with_history(values, options.history, text)
    _write(options, values)
    return values


def ended_cases(cases: list[BenchCase], measurements: Measurements) -> list[BenchCase]:
    """Return what was timed before an interruption, and forget the round that it cut.

    All configurations of the whole rounds; or, of the first round, those that ended.
    """
    readings, summaries = measurements.readings, measurements.summaries
    whole = min(map(len, readings.values()))
    ended = [case for case in cases if readings[case.label]]
    kept = {case.label for case in ended}
    for found in (readings, summaries):
        for label in list(found):
            if label not in kept:
                del found[label]
            else:
                del found[label][max(whole, 1) :]
    return ended


def _write(options: BenchOptions, values: dict[str, Any]) -> None:
    """Write bench.json, .html and .txt."""
    page = bench_html(values, sizes_text(values["spec"]))
    save_report("bench", bench_text(values), values, options.out, page=page)


def cases_to_time(
    spec: Spec, options: BenchOptions, cores: int
) -> tuple[list[BenchCase], dict[str, str]]:
    """Return the configurations to time, and the peers that are left out, each with the reason.

    A table of strategies is made without the peers that are not installed, unless `options`
    demands them.

    Args:
      spec: the network, its text and its training.
      options: what to time.
      cores: the number of CPU cores.

    Raises:
      UsageError: for an unknown strategy, a setting that none takes, or a peer that is needed
        and not installed.
    """
    if not options.strategies:
        cases = cases_of(spec, options, cores)
        check_installed({case.name for case in cases})
        return cases, {}
    strategy_cases(options, cores, [])  # refuses what is unknown, before any search
    left_out = peers_left_out(spec)
    if options.peers:
        check_installed(set(PEERS) - set(left_out))
    left_out = {**not_installed(PEERS), **left_out}
    peers = [name for name in PEERS if name not in left_out]
    return strategy_cases(options, cores, peers), left_out


def _shares(summaries: dict[str, list[dict[str, Any]]], rate: float) -> dict[str, float]:
    """Return label -> the share of a rate (FLOP/s) that its products reach."""
    return {
        label: median_field(each, "product_flops_per_second") / rate
        for label, each in summaries.items()
    }


def _values(
    spec: Spec, options: BenchOptions, cases: list[BenchCase], measurements: Measurements
) -> dict[str, Any]:
    """Return the measurements as plain values; see `bench`."""
    readings, summaries = measurements.readings, measurements.summaries
    rates = measurements.rates
    return {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "cases": {
            case.label: vars(case)
            | {
                "title": case.title,
                "layout": case.layout,
                "settings": case.entry.settings(options.settings).text,
            }
            for case in cases
        },
        "checked_steps": _CHECKED if options.check else 0,
        "losses_apart": check_losses(measurements.losses, cases),
        "threads": options.threads,
        **measured_here(),
        "steps": options.steps,
        "rounds": len(readings[cases[0].label]),
        "readings": readings,
        "throughput": {
            label: {"median": statistics.median(each), "spread": [min(each), max(each)]}
            for label, each in readings.items()
        },
        "product_limit": rates.limit,
        "product_rates": rates.large,
        "step_product_rate": rates.of_step,
        "share_of_limit": _shares(summaries, rates.limit),
        "share_of_step_products": _shares(summaries, rates.of_step),
        "waiting_share": {
            label: max(run["waiting_share"] for run in runs)
            for label, runs in summaries.items()
        },
        "seconds_to_first_step": {
            label: median_field(each, "seconds_to_first_step")
            for label, each in summaries.items()
        },
        "peak_memory": {
            label: [max(each) for each in zip(*(s["peak_memory"] for s in each), strict=True)]
            for label, each in summaries.items()
        },
        "padding": next(iter(summaries.values()))[0]["padding"],
        "scaling": scaling(readings, cases),
        "against": {} if options.strategies else ratios_to_peers(readings, cases),
        "strategies": strategy_rows(readings, cases) if options.strategies else [],
        "versions": {
            name: version
            for each in summaries.values()
            for name, version in each[0]["versions"].items()
        },
        "history": {"since": None},
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _check_parity(
    spec: Spec, options: BenchOptions, data: Path, cases: list[BenchCase]
) -> dict[str, dict[str, str]]:
    """Compare a few recorded steps of every configuration of both sides with the oracle.

    Returns:
      Label -> the digests of what the configuration has trained where every step is recorded,
      of the sides that compute the same every time.

    Raises:
      MismatchError: if they do not match.
    """
    traces, by_threads = dict[str, Trace](), dict[int, list[Trace]]()
    for case in cases:
        if case.name in FRAMEWORKS:
            folder = options.out / "checked" / case.label
            shutil.rmtree(folder, ignore_errors=True)
            given = {"trace": folder, "steps": _CHECKED, "decode": 0}
            with _start(spec, options, data, case, **given) as side:
                side.wait()
            traces[case.label] = Trace(folder)
            by_threads.setdefault(case.threads, []).append(traces[case.label])
    for same_threads in by_threads.values():
        verdict = compare_traces(same_threads)
        if not verdict.matches:
            outcome = Outcome(spec, verdict.sides, verdicts=[verdict])
            print(report_text(report_values(outcome, options.preset or "-", "")))
            raise MismatchError(
                "the sides do not match on the network to be timed: nothing is timed"
            )
    recorded = {}
    for case in cases:
        if case.label in traces:
            free = TrainedSide.from_json(traces[case.label].header).runs_freely
            shutil.rmtree(traces[case.label].folder)
            recorded[case.label] = {} if free else _recorded_run(spec, options, data, case)
    return recorded


def check_timed(label: str, recorded: Mapping[str, str], timed: Mapping[str, str]) -> None:
    """Check that a timed training ends with the weights of the recorded one.

    Args:
      label: the configuration.
      recorded: parameter, or tensor of the optimiser -> digest, where every step is recorded.
      timed: the same of the timed training.

    Raises:
      MismatchError: if one differs in any bit.
    """
    for name, digest in recorded.items():
        if timed.get(name) != digest:
            raise MismatchError(
                f"{label} trains something else when it is timed: its last {name} is not that "
                "of the same steps where they are recorded, which were compared"
            )


def _timed_run(
    spec: Spec, options: BenchOptions, data: Path, case: BenchCase
) -> tuple[dict[str, Any], list[float], dict[str, str]]:
    """Train one configuration; return the run's summary, its losses and the last digests."""
    out = options.out / "runs" / case.label
    shutil.rmtree(out, ignore_errors=True)
    with _start(spec, options, data, case, steps=options.steps, out=out, evaluate=0) as side:
        side.wait()
    summary = json.loads((out / "summary.json").read_text())
    with (out / "losses.csv").open(newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    digests = {} if case.is_peer else _digests(out)
    shutil.rmtree(out)
    return dict(summary), losses, digests


def _recorded_run(
    spec: Spec, options: BenchOptions, data: Path, case: BenchCase
) -> dict[str, str]:
    """Train one configuration with every step recorded, and return the last digests."""
    out = options.out / "checked" / case.label
    updates = options.steps * (1 if case.entry.traits.synchronous else case.replicas)
    with _start(
        *(spec, options, data, case),
        trace=out / "trace",
        trace_pending=_CHECKED,
        steps=updates,
        out=out,
        checkpoint_every=options.steps,
        decode=0,
        evaluate=0,
    ) as side:

        def is_running() -> bool:
            side.check()
            return not side.ended()

        trace = wait_for_trace(out / "trace", is_running)
        for _ in follow(trace, updates, is_running, delete=lambda step: True):
            pass  # recorded as the compared steps were; nothing of it is kept
        side.wait()
    digests = _digests(out)
    shutil.rmtree(out)
    return digests


def _digests(out: Path) -> dict[str, str]:
    """Return name -> digest of the weights and the optimiser's state that a training left."""
    checkpoint = newest_checkpoint(out / "checkpoints", [])
    assert checkpoint is not None
    found = checkpoint.snapshot.items()
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in found}


def _start(
    spec: Spec, options: BenchOptions, data: Path, case: BenchCase, **more: Any
) -> SideProcess:
    entry = case.entry
    of_case = {"data": data, "replicas": case.replicas, "threads": case.threads}
    of_case |= {"strategy": entry.name, **entry.settings(options.settings).given}
    if not case.is_peer:
        of_case["kernels"] = case.kernels
    return SideProcess(
        case.name,
        spec,
        options.out / "logs" / f"{case.label}.log",
        **shared_options(options) | of_case | more,
    )
