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
_SPECIAL = 4  # entries of a vocabulary of pairs that are no words


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
    data = options.data
    if data is None and spec.network == "seq2seq":
        spec = spec.replace(source_segmenter="spaces", target_segmenter="spaces")
        data = _generated_pairs(spec, options)
    elif data is None:
        data = _generated_text(spec, options)
    cases = list(itertools.product(options.replicas, FRAMEWORKS))
    readings: dict[str, list[float]] = {_label(*case): [] for case in cases}
    waiting: dict[str, float] = {}
    padding: dict[str, float] | None = None
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
        padding = summary["padding"]
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
        "padding": padding,
        "scaling": _scaling(readings, options.replicas),
        "command": command,
    }
    content = json.dumps(values, indent=2).encode() + b"\n"
    write_whole(options.out / "bench.json", content)
    write_whole(options.out / "bench.txt", bench_text(values).encode() + b"\n")
    return values


def bench_text(values: dict[str, Any]) -> str:
    """Return the measurements as a table for a terminal."""
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
    lines = [
        f"{_sizes(values['spec'])}; {values['threads']} thread a replica, "
        f"{values['cores']} cores; {values['rounds']} rounds of {values['steps']} steps",
        "",
        tabulate(rows, headers, tablefmt="simple", disable_numparse=True),
        "",
        "gain: median over rounds of the ratio to the first replica count, same round",
    ]
    if values["padding"]:
        lines.append(
            f"padded, of all positions: sources {values['padding']['source']:.1%}, targets "
            f"{values['padding']['target']:.1%}; tokens/s counts real target tokens"
        )
    return "\n".join(lines)


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


def _generated_pairs(spec: Spec, options: BenchOptions) -> Path:
    """Write pairs with just the vocabularies asked for, and enough of them for all steps.

    Lengths are those of chat and of short sentences: 3 to 20 tokens, about 11 on average.
    """
    sizes = {
        "source": spec.model.source_vocabulary_size - _SPECIAL,
        "target": spec.model.target_vocabulary_size - _SPECIAL,
    }
    folder = options.out / f"zipf-{sizes['source']}-{sizes['target']}"
    rows = {
        "train": max(
            spec.training.batch_size * (options.steps + 1), -(-2 * max(sizes.values()) // 3)
        ),
        "valid": 2 * spec.training.batch_size,
        "test": 2 * spec.training.batch_size,
    }
    make_folder(folder)
    generator = np.random.Generator(np.random.PCG64(1))
    for split, count in rows.items():
        columns = []
        for words in sizes.values():
            lengths = np.clip(generator.gamma(6.0, 1.8, count).astype(int), 3, 20)
            shares = 1 / np.arange(1, words + 1)
            ids = generator.choice(words, size=lengths.sum(), p=shares / shares.sum())
            if split == "train":
                ids[:words] = np.arange(words)  # each word once at least
            sentences = np.split(ids, np.cumsum(lengths)[:-1])
            columns.append([" ".join(f"w{word}" for word in line) for line in sentences])
        lines = [f"{source}\t{target}\n" for source, target in zip(*columns, strict=True)]
        write_whole(folder / f"{split}.tsv", "".join(lines).encode())
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
