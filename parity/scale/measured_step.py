"""Measures what the model needs of a side: the time of a step, and of its engine's software.

A step is timed with half, with all and with twice the batch's rows, on one rank. The cost of
the software is what two ranks on this machine take longer, with the network itself and with a
small one, whose gradients are few bytes.
"""

import json
import shutil

from parity.base.cores import usable_cores
from parity.base.progress import Counter
from parity.cli.options import ScaleOptions
from parity.launch.processes import SideProcess
from parity.launch.zipf_text import write_zipf_text
from parity.scale.engines import ENGINES, RINGS
from parity.scale.gradients import gradients
from parity.scale.model import Compute, Engine, Link, ring
from parity.spec.spec import Spec

RUNS = 7  # trainings of each side

_SMALL = 16  # units of the small network
_SMALL_VOCABULARY = 100
_MEMORY = Link(0.0, float("inf"))  # between processes of one machine


def measured_step(
    spec: Spec, side: str, options: ScaleOptions, progress: Counter
) -> tuple[Compute, Engine, dict[str, float]]:
    """Return what a side's step costs, its engine, and the seconds of all trainings by name."""
    batch = int(spec.training.batch_size)
    rows = sorted({max(1, batch // 2), batch, 2 * batch})
    readings: dict[str, float] = {}

    def timed(name: str, spec: Spec, ranks: int = 1) -> float:
        readings[name] = _seconds(spec, side, ranks, options)
        progress.update(f"{side}, {name}")
        return readings[name]

    alone = [timed(f"{each} rows", spec.replace(batch_size=each)) for each in rows]
    compute = Compute.fitted(rows, alone)
    if usable_cores() < 2 or batch < 2:
        return compute, ENGINES[side], readings  # two ranks would share a core
    small = _small(spec)
    added = {}
    for name, network in (("small network", small), ("network", spec)):
        half = timed(f"{name}, half of the rows", _halved(network))
        both = timed(f"{name}, two ranks", network, ranks=2)
        added[name] = max(0.0, both - half)
    messages = 2 * (2 - 1)
    engine = ENGINES[side].with_software(0.0, added["small network"] / messages)
    sent = ring(2, gradients(spec, batch).dense, _MEMORY, engine).sent
    rest = max(0.0, added["network"] - added["small network"])
    return compute, engine.with_software(rest / sent, engine.per_message), readings


def _halved(spec: Spec) -> Spec:
    return spec.replace(batch_size=spec.training.batch_size // 2)


def _small(spec: Spec) -> Spec:
    values = {
        name: _SMALL_VOCABULARY if "vocabulary" in name else _SMALL
        for name in spec.values()
        if name.endswith("vocabulary_size") or name in ("embedding_size", "hidden_size")
    }
    return spec.replace(**values)


def _seconds(spec: Spec, side: str, ranks: int, options: ScaleOptions) -> float:
    """Train, and return the median time of a step."""
    spec, data = write_zipf_text(spec, options.steps, options.out)
    out = options.out / "runs" / side
    shutil.rmtree(out, ignore_errors=True)
    with SideProcess(
        side,
        spec,
        options.out / "logs" / f"{side}.log",
        preset=options.preset,
        data=data,
        cache=options.cache,
        out=out,
        strategy=RINGS[side],
        processes=ranks,
        replicas=ranks,
        threads=1,
        steps=options.steps,
        debug=options.debug,
    ) as process:
        process.wait()
    summary = json.loads((out / "summary.json").read_text())
    shutil.rmtree(out)
    return float(summary["seconds_per_step"])
