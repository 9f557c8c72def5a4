"""Measure how the cost of the work grows with each of its sizes.

    python -m docs.tables.growth    write out/growth/growth.json, for docs.tables.write

Each size is multiplied by 8 and by 32, all others left as they are. Both sides train and
record the same steps; their traces are compared with each other and the oracle, and shown as
a page. Each is a process of its own.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.tables.measurement import Measurement, joined, markdown_table

ROOT = Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "out" / "growth"
FACTORS = (1, 8, 32)
BASE = {
    "hidden-size": 32,
    "vocabulary-size": 1000,
    "batch-size": 8,
    "time": 10,
    "steps": 8,
    "replicas": 1,
    "num-layers": 1,
}
# Replicas share a batch that has a row for each.
_BESIDE = {"replicas": {"batch-size": 32}}
# The power of each size with which the arithmetic grows: of the weights most are hidden x
# hidden; replicas share the same rows.
OUGHT = dict.fromkeys(BASE, 1) | {"hidden-size": 2, "replicas": 0}
# Seconds of the processor that both trainings and the comparison take, the comparison's peak
# memory in MB, and the report's page in kB.
WORKS = ("Paddle", "TensorFlow", "comparison", "memory", "page")
# Of what has grown by less, the fixed cost and the noise of a machine hide the power.
_LEAST = 2.0
_WORDS, _LINES = 40_000, 3_000


def measure() -> dict[str, Any]:
    """Return size -> factor -> work -> its cost."""
    shutil.rmtree(OUT, ignore_errors=True)
    _write_text(OUT / "text")
    costs: dict[str, Any] = {}
    for name in BASE:
        for factor in FACTORS:
            sizes = BASE | _BESIDE.get(name, {})
            found = _costs(sizes | {name: sizes[name] * factor})
            costs.setdefault(name, []).append(found)
            print(f"{name} x {factor}: {found}", flush=True)
    return {"base": BASE, "costs": costs}


def _write_text(folder: Path) -> None:
    """Write a text whose words are as frequent as Zipf's law has them; all of them occur."""
    draw = random.Random(1)
    words = [f"w{number}" for number in range(_WORDS)]
    weights = [1 / (rank + 1) for rank in range(_WORDS)]
    folder.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        lines = [draw.choices(words, weights, k=20) for _ in range(_LINES)]
        if name == "train":
            lines += [words[first : first + 20] for first in range(0, _WORDS, 20)]
        text = "\n".join(map(" ".join, lines))
        (folder / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")


def _costs(sizes: Mapping[str, int]) -> dict[str, float]:
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    flags += [f"--data={OUT / 'text'}", "--embedding-size=32", "--threads=1"]
    traces, page = [OUT / "a", OUT / "b"], OUT / "page.html"
    found = {}
    for work, folder, trace in zip(WORKS, ("paddle_impl", "tf_impl"), traces, strict=False):
        shutil.rmtree(trace, ignore_errors=True)
        found[work], _ = _cost([f"{folder}/train.py", *flags, f"--trace={trace}"])
    compare = ["-m", "parity", "compare", *map(str, traces), f"--html={page}"]
    found["comparison"], found["memory"] = _cost(compare)
    return found | {"page": round(page.stat().st_size / 1e3)}


def _cost(words: Sequence[str]) -> tuple[float, float]:
    """Run a program of this project; return its processor's seconds, and MB at the peak."""
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(words)}: status {os.waitstatus_to_exitcode(status)}")
    return round(used.ru_utime + used.ru_stime, 2), round(used.ru_maxrss / 1024)


def exponent(costs: Sequence[float]) -> float | None:
    """Return p of a + b * factor ** p through the costs at `FACTORS`; None if it is hidden.

    What a process costs before it has any work to do is a.
    """
    first, middle, last = costs
    if last < _LEAST * first or not first < middle < last:
        return None
    low, high = 0.01, 4.0
    for _ in range(60):
        power = (low + high) / 2
        grown = [factor**power - 1 for factor in FACTORS]
        if grown[2] / grown[1] < (last - first) / (middle - first):
            low = power
        else:
            high = power
    return power


def growth_table(measured: Sequence[Measurement]) -> str:
    """Return what each work costs at each size, and the power with which it grows."""
    (one,) = measured
    rows = []
    for name, costs in one.values["costs"].items():
        cells = []
        for work in WORKS:
            series = [each[work] for each in costs]
            power = exponent(series)
            told = "–" if power is None else f"{power:.1f}"
            cells.append(f"{series[0]:,.4g} → {series[-1]:,.4g}: {told}")
        first = one.values["base"][name]
        rows.append([f"`--{name}` {first} → {first * FACTORS[-1]:,}", OUGHT[name], *cells])
    return joined(
        one.provenance("python -m docs.tables.growth"),
        markdown_table(["size", "arithmetic", *WORKS], rows),
    )


if __name__ == "__main__":
    values = measure()
    (OUT / "growth.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
