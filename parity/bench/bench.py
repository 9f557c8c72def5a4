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
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from parity.base.cores import usable_cores
from parity.base.errors import Mismatch, UsageError
from parity.base.files import make_folder, write_whole
from parity.base.progress import Counter
from parity.bench.page import bench_html
from parity.bench.zipf_text import generated
from parity.cli.options import BenchOptions
from parity.compare.ladder import climb
from parity.compare.outcome import Outcome
from parity.launch.processes import PEERS, SideProcess, interpreter
from parity.report.values import report_text, report_values
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.spec import Spec
from parity.trace.trace import Trace
from parity.training.flops import product_limit
from parity.training.meter import WARM_UP

_CHECKED = 2  # steps of every configuration that are held against the oracle
# A peer's losses of the warm-up may be apart from the sides' by that share of them: seen 3e-7
# in float32, and 8e-4 where a peer took its gradients twice.
_LOSSES_APART = 1e-4


@dataclass(frozen=True)
class Case:
    """One configuration that is timed.

    Attributes:
      name: of the side or the peer.
      replicas: that share each batch.
      threads: of each replica.
    """

    name: str
    replicas: int
    threads: int

    @property
    def layout(self) -> str:
        """Return replicas and threads."""
        return f"{self.replicas} x {self.threads}"

    @property
    def label(self) -> str:
        """Return what it is called in folders and in bench.json."""
        return f"{self.name}-{self.replicas}x{self.threads}"


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
    cases = _cases(spec, options, cores)
    _check_installed({case.name for case in cases})
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
    values = {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "cases": {case.label: vars(case) for case in cases},
        "checked_steps": _CHECKED if options.check else 0,
        "losses_apart": _check_losses(losses, cases),
        "threads": options.threads,
        "cores": cores,
        "steps": options.steps,
        "rounds": options.rounds,
        "readings": readings,
        "throughput": {label: _summary(found) for label, found in readings.items()},
        "product_limit": max(limits),
        "share_of_limit": {
            label: _median(found, "product_flops_per_second") / max(limits)
            for label, found in summaries.items()
        },
        "waiting_share": _worst(summaries, "waiting_share"),
        "seconds_to_first_step": {
            label: _median(found, "seconds_to_first_step") for label, found in summaries.items()
        },
        "peak_memory": {
            label: [max(each) for each in zip(*(s["peak_memory"] for s in found), strict=True)]
            for label, found in summaries.items()
        },
        "padding": next(iter(summaries.values()))[0]["padding"],
        "scaling": _scaling(readings, cases),
        "against": _against(readings, cases),
        "versions": {
            name: version
            for found in summaries.values()
            for name, version in found[0]["versions"].items()
        },
        "machine": f"{platform.system()} {platform.machine()}",
        "command": command,
    }
    content = json.dumps(values, indent=2).encode() + b"\n"
    write_whole(options.out / "bench.json", content)
    page = bench_html(values, _sizes(values["spec"]))
    write_whole(options.out / "bench.html", page.encode())
    write_whole(options.out / "bench.txt", bench_text(values).encode() + b"\n")
    return values


def _cases(spec: Spec, options: BenchOptions, cores: int) -> list[Case]:
    """Return what to time: the sides, and with peers every layout that uses all cores."""
    cases = [
        Case(name, replicas, options.threads)
        for replicas, name in itertools.product(options.replicas, FRAMEWORKS)
    ]
    if options.peers:
        full = ((cores, 1), (1, cores))
        peers = [name for name in PEERS if name != "keras" or spec.network == "language-model"]
        cases += [Case(name, *layout) for layout in full for name in (*FRAMEWORKS, *peers)]
    return list(dict.fromkeys(cases))


def _check_installed(names: Iterable[str]) -> None:
    for name in sorted(set(names) & set(PEERS)):
        module = PEERS[name][1]
        find = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if subprocess.run([interpreter(name), "-c", find], check=False).returncode:
            raise UsageError(
                f"--peers is given, but {module} is not installed for {interpreter(name)}; "
                f"allowed: install the dependency group `peers` there, or name a Python that "
                f"has it in PARITY_{name.upper()}_PYTHON"
            )


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


def _check_losses(losses: Mapping[str, list[float]], cases: list[Case]) -> dict[str, float]:
    """Return how far each peer's losses of the warm-up are from the first side's, over them.

    Raises:
      UsageError: if it is another training.
    """
    expected = np.array(losses[cases[0].label][:WARM_UP])
    found = {}
    for case in cases:
        if case.name in PEERS:
            apart = np.abs(np.array(losses[case.label][:WARM_UP]) - expected) / expected
            found[case.label] = float(apart.max())
            if not found[case.label] <= _LOSSES_APART:
                raise UsageError(
                    f"{case.label}: its losses are up to {found[case.label]:.2g} apart from "
                    f"{cases[0].label}'s, of which {_LOSSES_APART:g} is allowed: it trains "
                    "something else"
                )
    return found


def bench_text(values: dict[str, Any]) -> str:
    """Return the measurements as tables for a terminal."""
    rows = []
    for label, speed in values["throughput"].items():
        case = Case(**values["cases"][label])
        low, high = speed["spread"]
        gain = values["scaling"].get(case.name, {}).get(str(case.replicas))
        memory = sum(values["peak_memory"][label]) / 1e6
        rows.append(
            [
                case.name,
                case.layout,
                f"{speed['median']:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                _ratio(gain if case.threads == values["threads"] else None),
                f"{values['share_of_limit'][label]:.0%}",
                f"{values['waiting_share'][label]:.1%}",
                f"{values['seconds_to_first_step'][label]:.1f}",
                f"{memory:,.0f}",
            ]
        )
    headers = [
        "side",
        "replicas\nx threads",
        "tokens/s\nmedian",
        "spread",
        "gain",
        "of\nlimit",
        "waiting\nfor data",
        "seconds to\nfirst step",
        "peak\nMB",
    ]
    checked = values["checked_steps"]
    lines = [
        f"{_sizes(values['spec'])}; {values['cores']} cores; "
        f"{values['rounds']} rounds of {values['steps']} steps",
        f"checked: {checked} steps of each side's configurations match the oracle"
        if checked
        else "not checked against the oracle",
        "",
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        "gain: median over rounds of the ratio to the first replica count, same round",
        f"limit: matrix products alone at {values['product_limit'] / 1e9:,.0f} GFLOP/s, the "
        "best rate seen of large ones",
    ]
    if values["against"]:
        lines += ["", *_against_lines(values)]
    if values["padding"]:
        lines.append(
            f"padded, of all positions: sources {values['padding']['source']:.1%}, targets "
            f"{values['padding']['target']:.1%}; tokens/s counts real target tokens"
        )
    return "\n".join(lines)


def _against_lines(values: dict[str, Any]) -> list[str]:
    """Return the table of ratios to the peers."""
    against = values["against"]
    peers = list(next(iter(against.values())))

    def named(label: str) -> str:
        case = values["cases"].get(label)
        return (
            f"{case['name']}\n{case['replicas']} x {case['threads']}" if case else "best\npeer"
        )

    rows = [
        [named(side).replace("\n", " "), *(_ratio(ratios[peer]) for peer in peers)]
        for side, ratios in against.items()
    ]
    headers = ["times as fast as", *map(named, peers)]
    apart = max(values["losses_apart"].values())
    return [
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        "ratios: medians over rounds, same round; the peers' losses of the first "
        f"{WARM_UP} steps are the sides' to {apart:.1g} of them",
    ]


def _sizes(spec: dict[str, Any]) -> str:
    """Return what was timed, in a line."""
    model, training = spec["model"], spec["training"]
    words = [f"{spec['network']}: hidden {model['hidden_size']}"]
    if spec["network"] == "seq2seq":
        feeding = " with input feeding" if model["input_feeding"] else ""
        words += [
            model["cell"],
            f"{model['attention']} attention{feeding}",
            f"vocabularies {model['source_vocabulary_size']:,} and "
            f"{model['target_vocabulary_size']:,}",
        ]
    else:
        words += [f"time {spec['text']['time']}", f"vocabulary {model['vocabulary_size']:,}"]
    words += [f"batch {training['batch_size']}", f"{model['num_layers']} layers"]
    return ", ".join([*words, training["dtype"]])


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
    with SideProcess(
        case.name,
        spec,
        options.out / "logs" / f"{case.label}.log",
        preset=options.preset,
        data=data,
        cache=options.cache,
        replicas=case.replicas,
        threads=case.threads,
        device=options.device,
        debug=options.debug,
        **more,
    ) as side:
        side.wait()


def _scaling(
    readings: Mapping[str, list[float]], cases: Iterable[Case]
) -> dict[str, dict[str, float]]:
    """Return framework -> replicas -> gain over the first count, round by round.

    Of the cases with as many threads as the framework's first one.
    """
    first: dict[str, Case] = {}
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        base = first.setdefault(case.name, case)
        if case.threads == base.threads and case.name in FRAMEWORKS:
            gain = _ratio_of(readings, case.label, base.label)
            found.setdefault(case.name, {})[str(case.replicas)] = gain
    return found


def _against(
    readings: Mapping[str, list[float]], cases: list[Case]
) -> dict[str, dict[str, float]]:
    """Return label of a side -> label of a peer -> ratio, and "best" for the fastest peer."""
    peers = [case.label for case in cases if case.name in PEERS]
    if not peers:
        return {}
    best = max(peers, key=lambda label: statistics.median(readings[label]))
    return {
        case.label: {peer: _ratio_of(readings, case.label, peer) for peer in peers}
        | {"best": _ratio_of(readings, case.label, best)}
        for case in cases
        if case.name in FRAMEWORKS
    }


def _ratio_of(readings: Mapping[str, list[float]], a: str, b: str) -> float:
    pairs = zip(readings[a], readings[b], strict=True)
    return statistics.median(one / other for one, other in pairs)


def _summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "spread": [min(values), max(values)]}


def _median(summaries: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(summary[name] for summary in summaries))


def _worst(summaries: Mapping[str, list[dict[str, Any]]], name: str) -> dict[str, float]:
    return {label: max(each[name] for each in found) for label, found in summaries.items()}


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
