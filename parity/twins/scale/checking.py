"""Compares the model with real trainings on hosts of this machine, joined by shaped links."""

import socket
import statistics
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import UsageError
from parity.base.files import make_folder
from parity.base.progress import Counter
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.links.hosts import Hosts, hosts, possible
from parity.twins.links.measure import measure, serve
from parity.twins.links.namespaces import inside
from parity.twins.scale.engines import ENGINES
from parity.twins.scale.gradients import gradients
from parity.twins.scale.model import Engine, Link, ring
from parity.twins.scale.repetitions import FEW, measured_costs
from parity.twins.scale.trials import Timed, Trials
from parity.twins.spec.spec import Spec

ALLOWED = 0.2  # by which a prediction may be wrong, as a share of what was measured

_RANKS = (1, 2, 4)
_RATES, _DELAYS = (1e9, 1e8), (1e-4, 1e-3, 1e-2)  # bits per second, seconds
_PORT = 6_400
_NO_LIMIT = Link(0.0, float("inf"))
_NO_SHAPE = (None, 0.0)


class _Base(NamedTuple):
    """What was measured of some ranks before the links were shaped.

    Attributes:
      compute: seconds of a step of trainings side by side, which do not communicate.
      engine: what the software adds, from trainings over links without a limit.
      hidden: whether noise hides what it adds; then the engine has the most that it may be.
    """

    compute: float
    engine: Engine
    hidden: bool = False


def check_model(spec: Spec, sides: Sequence[str], steps: int, out: Path) -> dict[str, Any]:
    """Time trainings over shaped links and compare their steps with the model's.

    Args:
      spec: the network, its text and its training.
      sides: the frameworks.
      steps: the number of steps of each training, warm-up included.
      out: the folder to write to.

    Returns:
      `links` (what was set and measured of each link), `bases` (what was measured without
      them), `trials` (each training with its measured and predicted step), `worst` (the
      greatest share by which a prediction is wrong) and `allowed`, as plain values.

    Raises:
      UsageError: where no namespaces can be made.
      SideFailed: if a training fails.
    """
    if not possible():
        raise UsageError(
            "--check needs network namespaces; allowed: on Linux, as root, with iproute2 and "
            "/dev/net/tun"
        )
    make_folder(out)
    spec, data = write_zipf_text(spec, steps, out)
    shapes = [(rate, delay) for rate in _RATES for delay in _DELAYS]
    runs = len(sides) * sum(2 * FEW + len(shapes) if ranks > 1 else 2 for ranks in _RANKS)
    bases: list[dict[str, Any]] = []
    trials: list[dict[str, Any]] = []
    with hosts(max(_RANKS)) as there, Counter("checking", runs, "training") as progress:
        links = dict(_measured_links(there, shapes))
        for side in sides:
            with Trials(side, there, data, out) as started:
                for ranks in _RANKS:
                    base = _base(started, there, spec, ranks, steps, side)
                    bases.append(_base_values(side, ranks, base))
                    progress.update(f"{side} {ranks}", 2 * FEW if ranks > 1 else 1)
                    for shape, link in links.items() if ranks > 1 else [(None, None)]:
                        there.shape(*(shape or _NO_SHAPE))
                        timed = started.together(spec, ranks, steps)
                        trials.append(_trial(spec, side, ranks, shape, link, base, timed))
                        progress.update(f"{side} {ranks} {timed.seconds:.3f} s")
                    there.shape(None)
    worst = max(abs(trial["error"]) for trial in trials)
    return {
        "links": [_link_values(shape, link) for shape, link in links.items()],
        "bases": bases,
        "trials": trials,
        "gradient_bytes": gradients(spec, spec.training.batch_size).dense,
        "steps": steps,
        "worst": worst,
        "allowed": ALLOWED,
    }


def _measured_links(
    there: Hosts, shapes: Sequence[tuple[float, float]]
) -> Iterator[tuple[tuple[float, float], Link]]:
    """Yield each shape with the link that is measured with it, between the first two hosts."""
    with inside(there.names[1]):
        listener = socket.create_server((there.addresses[1], _PORT))
    answering = threading.Thread(target=serve, args=(listener, len(shapes)), daemon=True)
    answering.start()
    for shape in shapes:
        there.shape(*shape)
        with inside(there.names[0]):
            yield shape, Link(*measure(there.addresses[1], _PORT))
    answering.join()
    listener.close()
    there.shape(None)


def _base(
    started: Trials, there: Hosts, spec: Spec, ranks: int, steps: int, side: str
) -> _Base:
    def alone() -> float:
        return started.side_by_side(_share(spec, ranks), ranks, steps).seconds

    if ranks == 1:
        return _Base(alone(), ENGINES[side])
    compute: list[float] = []

    def added() -> list[float]:
        compute.append(alone())
        return [started.together(spec, ranks, steps).seconds - compute[-1]]

    there.shape(None)
    (cost,) = measured_costs(added)
    size = gradients(spec, spec.training.batch_size).dense
    sent = ring(ranks, size, _NO_LIMIT, ENGINES[side]).sent
    engine = ENGINES[side].with_software(cost.amount / sent)
    return _Base(statistics.median(compute), engine, cost.hidden)


def _share(spec: Spec, ranks: int) -> Spec:
    return spec.replace(batch_size=spec.training.batch_size // ranks)


def _trial(
    spec: Spec,
    side: str,
    ranks: int,
    shape: tuple[float, float] | None,
    link: Link | None,
    base: _Base,
    timed: Timed,
) -> dict[str, Any]:
    size = gradients(spec, spec.training.batch_size).dense
    exchange = ring(ranks, size, link or _NO_LIMIT, base.engine)
    predicted = base.compute + exchange.seconds
    return {
        "side": side,
        "ranks": ranks,
        "rate": shape and shape[0],
        "delay": shape and shape[1],
        "measured": timed.seconds,
        "predicted": predicted,
        "error": predicted / timed.seconds - 1,
        "sent": timed.sent if ranks > 1 else 0.0,
        "predicted_sent": exchange.sent,
    }


def _base_values(side: str, ranks: int, base: _Base) -> dict[str, Any]:
    return {
        "side": side,
        "ranks": ranks,
        "compute": base.compute,
        "engine": vars(base.engine),
        "hidden": base.hidden,
    }


def _link_values(shape: tuple[float, float], link: Link) -> dict[str, float]:
    return {"rate": shape[0], "delay": shape[1], **vars(link)}
