"""`python -m parity bench`: how fast each side trains, in real tokens per second.

Runs are taken in turn (A B A B ...), each alone on the machine and in a process of its own, so
that a machine whose speed drifts slows all sides alike. A run's first steps are left out.
"""

import itertools
import json
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from parity.files import make_folder, write_whole
from parity.launch import FRAMEWORKS, Side
from parity.options import BenchOptions
from parity.spec import Spec

_LINE = 25  # words of a generated line


def bench(spec: Spec, options: BenchOptions, command: str) -> dict[str, Any]:
    """Time all sides and replica counts in turn, and write bench.json and bench.txt.

    Args:
      command: what the user typed, for the record.

    Returns:
      The measurements as plain values: `readings` (side -> tokens/s of each run), `throughput`
      (side -> median and spread), `scaling` (framework -> replicas -> ratio to the first).

    Raises:
      UsageError: for input that cannot be used, as the sides found it.
    """
    make_folder(options.out)
    data = options.data or _generated_text(spec, options)
    cases = list(itertools.product(options.replicas, FRAMEWORKS))
    readings: dict[str, list[float]] = {_label(*case): [] for case in cases}
    waiting: dict[str, float] = {}
    rounds = tqdm(
        list(itertools.product(range(options.rounds), cases)),
        desc="timing",
        unit="run",
        leave=False,
        disable=not sys.stderr.isatty(),
    )
    for _, (replicas, framework) in rounds:
        summary = _timed_run(spec, options, data, framework, replicas)
        label = _label(replicas, framework)
        readings[label].append(summary["tokens_per_second"]["median"])
        waiting[label] = max(waiting.get(label, 0.0), summary["waiting_share"])
    values = {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "threads": options.threads,
        "cores": os.cpu_count(),
        "steps": options.steps,
        "rounds": options.rounds,
        "readings": readings,
        "throughput": {label: _summary(found) for label, found in readings.items()},
        "waiting_share": waiting,
        "scaling": _scaling(readings, options.replicas),
        "command": command,
    }
    content = json.dumps(values, indent=2).encode() + b"\n"
    write_whole(options.out / "bench.json", content)
    write_whole(options.out / "bench.txt", bench_text(values).encode() + b"\n")
    if options.json is not None:
        make_folder(options.json.parent)
        write_whole(options.json, content)
    return values


def bench_text(values: dict[str, Any]) -> str:
    """Return the measurements as a table for a terminal."""
    model, training = values["spec"]["model"], values["spec"]["training"]
    rows = []
    for label, speed in values["throughput"].items():
        replicas, framework = label.rsplit("-", 1)[1], label.rsplit("-", 1)[0]
        low, high = speed["spread"]
        rows.append(
            [
                framework,
                replicas,
                f"{speed['median']:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                _ratio(values["scaling"][framework].get(replicas)),
                f"{values['waiting_share'][label]:.1%}",
            ]
        )
    headers = ["side", "replicas", "tokens/s\nmedian", "spread", "gain", "waiting\nfor data"]
    return "\n".join(
        [
            f"{values['network']}: hidden {model['hidden_size']}, "
            f"batch {training['batch_size']}, time {training['time']}, "
            f"vocabulary {model['vocabulary_size']:,}, {model['num_layers']} layers, "
            f"{training['dtype']}; {values['threads']} thread a replica, "
            f"{values['cores']} cores; "
            f"{values['rounds']} rounds of {values['steps']} steps",
            "",
            tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
            "",
            "gain: median over rounds of the ratio to the first replica count, same round",
        ]
    )


def _timed_run(
    spec: Spec, options: BenchOptions, data: Path, framework: str, replicas: int
) -> dict[str, Any]:
    label = _label(replicas, framework)
    out = options.out / "runs" / label
    shutil.rmtree(out, ignore_errors=True)
    with Side(
        framework,
        spec,
        options.out / "logs" / f"{label}.log",
        preset=options.preset,
        data=data,
        cache=options.cache,
        replicas=replicas,
        threads=options.threads,
        device=options.device,
        steps=options.steps,
        out=out,
        debug=options.debug,
    ) as side:
        side.wait()
    summary = json.loads((out / "summary.json").read_text())
    shutil.rmtree(out)
    return dict(summary)


def _generated_text(spec: Spec, options: BenchOptions) -> Path:
    """Write text with just the vocabulary asked for, and enough of it for all steps."""
    words = spec.model.vocabulary_size - 2  # beside <unk> and <eos>
    folder = options.out / f"zipf-{words}"
    needed = spec.training.batch_size * spec.text.time
    counts = {
        "train": max(needed * (options.steps + 1), 2 * words),
        "valid": 2 * needed,
        "test": 2 * needed,
    }
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    shares = 1 / np.arange(1, words + 1)
    for split, count in counts.items():
        ids = generator.choice(words, size=count, p=shares / shares.sum())
        if split == "train":
            ids[:words] = np.arange(words)  # each word once at least
        lines = [
            " ".join(f"w{word}" for word in ids[start : start + _LINE])
            for start in range(0, count, _LINE)
        ]
        write_whole(folder / f"{split}.txt", ("\n".join(lines) + "\n").encode())
    return folder


def _scaling(
    readings: dict[str, list[float]], replicas: tuple[int, ...]
) -> dict[str, dict[str, float]]:
    """Return framework -> replicas -> gain over the first count, round by round."""
    found: dict[str, dict[str, float]] = {}
    for framework in FRAMEWORKS:
        first = readings[_label(replicas[0], framework)]
        found[framework] = {
            str(count): statistics.median(
                more / one
                for more, one in zip(readings[_label(count, framework)], first, strict=True)
            )
            for count in replicas
        }
    return found


def _summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "spread": [min(values), max(values)]}


def _label(replicas: int, framework: str) -> str:
    return f"{framework}-{replicas}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
