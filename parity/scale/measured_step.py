"""Measures what the model needs of a side: the time of a step, and of its engine's software.

A step is timed with half, with all and with twice the batch's rows, on one rank. The cost of
the software is what two ranks on this machine take longer than two trainings side by side that
do not communicate and have half of the rows each, with the network itself and with a
small one, whose gradients are few bytes. What a message costs is half of a round trip between
two programs of this machine.
"""

import json
import shutil
import socket
import statistics
import threading
from contextlib import ExitStack

from parity.base.cores import usable_cores
from parity.base.progress import Counter
from parity.cli.options import ScaleOptions
from parity.launch.processes import SideProcess
from parity.launch.zipf_text import write_zipf_text
from parity.links.measure import measure, serve
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

    def timed(name: str, spec: Spec, ranks: int = 1, copies: int = 1) -> float:
        readings[name] = _seconds(spec, side, ranks, copies, options)
        progress.update(f"{side}, {name}")
        return readings[name]

    alone = [timed(f"{each} rows", spec.replace(batch_size=each)) for each in rows]
    compute = Compute.fitted(rows, alone)
    if usable_cores() < 2 or batch < 2:
        return compute, ENGINES[side], readings  # two ranks would share a core
    small = _small(spec)
    added = {}
    for name, network in (("small network", small), ("network", spec)):
        half = timed(f"{name}, two by themselves", _halved(network), copies=2)
        both = timed(f"{name}, two ranks", network, ranks=2)
        added[name] = max(0.0, both - half)
    sent = ring(2, gradients(spec, batch).dense, _MEMORY, ENGINES[side]).sent
    rest = max(0.0, added["network"] - added["small network"])
    engine = ENGINES[side].with_software(rest / sent, message_seconds(), added["small network"])
    return compute, engine, readings


def message_seconds() -> float:
    """Return how long a small message takes over TCP within this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, 1), daemon=True).start()
        return measure("127.0.0.1", listener.getsockname()[1])[0]


def _halved(spec: Spec) -> Spec:
    return spec.replace(batch_size=spec.training.batch_size // 2)


def _small(spec: Spec) -> Spec:
    values = {
        name: _SMALL_VOCABULARY if "vocabulary" in name else _SMALL
        for name in spec.values()
        if name.endswith("vocabulary_size") or name in ("embedding_size", "hidden_size")
    }
    return spec.replace(**values)


def _seconds(spec: Spec, side: str, ranks: int, copies: int, options: ScaleOptions) -> float:
    """Train, side by side if there are copies, and return the mean of their median steps."""
    spec, data = write_zipf_text(spec, options.steps, options.out)
    folders = [options.out / "runs" / f"{side}-{copy}" for copy in range(copies)]
    with ExitStack() as stack:
        processes = []
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            process = SideProcess(
                side,
                spec,
                options.out / "logs" / f"{folder.name}.log",
                preset=options.preset,
                data=data,
                cache=options.cache,
                out=folder,
                strategy=RINGS[side],
                processes=ranks,
                replicas=ranks,
                threads=1,
                steps=options.steps,
                debug=options.debug,
            )
            processes.append(stack.enter_context(process))
        for process in processes:
            process.wait()
    found = [json.loads((each / "summary.json").read_text()) for each in folders]
    for folder in folders:
        shutil.rmtree(folder)
    return statistics.fmean(each["seconds_per_step"] for each in found)
