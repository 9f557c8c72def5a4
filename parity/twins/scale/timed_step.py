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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from parity.base.errors import UsageError
from parity.base.machine import usable_cores
from parity.base.progress import ProgressBar
from parity.twins.cli.options import ScaleOptions
from parity.twins.launch.processes import SideProcess, shared_options
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.scale.model import Compute, Engine, Link, ring
from parity.twins.scale.workload import gradients
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec

# Both engines sum all gradients at once, in one buffer, by a ring.
ENGINES = {
    # gloo divides a chunk into at least two segments of at most 1 MiB, and sends one when its
    # receiver has said that it is ready
    "paddle": Engine(segment=1 << 20),
    # Every chunk is fetched by a remote call. The calls of the first round wait for their data
    # at the sender, and those of later rounds have come before it.
    "tensorflow": Engine(delays_before=1),
}
REPEATED = 3  # how often the cost of the software is measured
RUNS = 3 + 4 * REPEATED  # trainings of each side, if noise does not ask for more

_SMALL = 16  # units of the small network
_SMALL_VOCABULARY = 100
_MEMORY = Link(0.0, float("inf"))  # between processes of one machine
_PINGS = 50

# returns the seconds of a step; see `_seconds`
Timer = Callable[[Spec, int, int], float]


class Measured(NamedTuple):
    """What was measured of a side.

    Attributes:
      compute: the time of its step.
      engine: the engine, with the time of its software.
      readings: what was trained -> the seconds of a step, of each repetition.
    """

    compute: Compute
    engine: Engine
    readings: Mapping[str, Sequence[float]]


def timed_step(spec: Spec, side: str, options: ScaleOptions, progress: ProgressBar) -> Measured:
    """Measure what a side's step costs, by trainings.

    Raises:
      SideFailed: if a training fails.
      UsageError: if noise hides the time of a row.
    """

    def seconds(spec: Spec, ranks: int, copies: int) -> float:
        found = _seconds(spec, side, ranks, copies, options)
        progress.update(f"{side}, {ranks * copies} ranks")
        return found

    return step_and_software(spec, ENGINES[side], seconds, usable_cores())


def step_and_software(spec: Spec, engine: Engine, seconds: Timer, cores: int) -> Measured:
    """Measure what a step costs, and the software of an engine.

    Args:
      spec: the network, its text and its training.
      engine: the engine.
      seconds: times a step of a network on some ranks of one training, and of several copies of
        the training side by side.
      cores: how many cores there are.

    Raises:
      UsageError: if noise hides the time of a row.
    """
    batch = int(spec.training.batch_size)
    readings: dict[str, list[float]] = {}

    def timed(name: str, spec: Spec, ranks: int = 1, copies: int = 1) -> float:
        found = readings.setdefault(name, [])
        found.append(seconds(spec, ranks, copies))
        return found[-1]

    compute = _compute(spec, timed, readings)
    if cores < 2 or batch < 2:  # two ranks would share a core, or a row
        return Measured(compute, engine, readings)
    collective, per_byte = [], []
    sent = ring(2, gradients(spec, batch / 2, batch).summed, _MEMORY, engine).sent
    for _ in range(REPEATED):
        added = []
        for name, network in (("small network", _small(spec)), ("network", spec)):
            halved = network.replace(batch_size=batch // 2)
            half = timed(f"{name}, two by themselves", halved, copies=2)
            added.append(timed(f"{name}, two ranks", network, ranks=2) - half)
        collective.append(added[0])
        per_byte.append((added[1] - added[0]) / sent)
    # noise may make a small cost negative
    engine = replace(
        engine,
        per_byte=max(0.0, statistics.median(per_byte)),
        per_message=message_seconds(),
        per_collective=max(0.0, statistics.median(collective)),
    )
    return Measured(compute, engine, readings)


def message_seconds() -> float:
    """Return how long a small message takes over TCP within this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            answering, _ = listener.accept()
            with answering:
                answering.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while word := answering.recv(1):
                    answering.sendall(word)

        threading.Thread(target=echo, daemon=True).start()
        trips = []
        with socket.create_connection(listener.getsockname()) as channel:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_PINGS):
                start = time.perf_counter()
                channel.sendall(b"x")
                channel.recv(1)
                trips.append(time.perf_counter() - start)
    return statistics.median(trips) / 2


def _compute(
    spec: Spec, timed: Callable[[str, Spec], float], readings: Mapping[str, Sequence[float]]
) -> Compute:
    batch = int(spec.training.batch_size)
    rows = sorted({max(1, batch // 2), batch, 2 * batch})
    for _ in range(REPEATED):
        for each in rows:
            timed(f"{each} rows", spec.replace(batch_size=each))
        medians = [statistics.median(readings[f"{each} rows"]) for each in rows]
        compute = Compute.fitted(rows, medians)
        if compute.per_row > 0:
            return compute
    raise UsageError(
        f"a step takes no longer with {rows[-1]} rows than with {rows[0]} in {REPEATED} "
        "repetitions: noise hides the time of a row; allowed: a machine that does nothing "
        "else, more --steps, or a time that is given by --compute"
    )


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
                **shared_options(options),
                data=data,
                out=folder,
                strategy=FRAMEWORKS[side].collective.name,  # sums by a ring
                processes=ranks,
                replicas=ranks,
                threads=1,
                steps=options.steps,
                evaluate=0,
            )
            processes.append(stack.enter_context(process))
        for process in processes:
            process.wait()
    found = [json.loads((each / "summary.json").read_text()) for each in folders]
    for folder in folders:
        shutil.rmtree(folder)
    return statistics.fmean(each["seconds_per_step"] for each in found)
