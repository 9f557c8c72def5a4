"""Predicts steps on many ranks for `parity scale`, and writes what was found."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parity import __version__
from parity.base.errors import UsageError
from parity.base.files import make_folder, write_whole
from parity.base.machine import measured_here
from parity.base.progress import Counter
from parity.twins.cli.options import ScaleOptions
from parity.twins.links.measure import measure
from parity.twins.scale.checking import check_model
from parity.twins.scale.engines import COLLECTIVES, ENGINES
from parity.twins.scale.gradients import gradients
from parity.twins.scale.measured_step import RUNS, Measured, measured_step
from parity.twins.scale.model import Link
from parity.twins.scale.page import scale_html
from parity.twins.scale.quantities import parse_compute, parse_link, parse_links, parse_software
from parity.twins.scale.terminal import check_markdown, check_text, scale_text
from parity.twins.scale.workload import STRATEGIES, Cluster, Workload
from parity.twins.spec.spec import Spec

_SCALINGS = ("weak", "strong")


def scale(spec: Spec, options: ScaleOptions, command: str) -> tuple[str, dict[str, Any]]:
    """Predict steps and write scale.json, scale.txt and scale.html.

    Args:
      spec: the network, its text and its training.
      options: what to measure and to predict.
      command: the command that the user typed, which is recorded.

    Returns:
      The text for a terminal, and the content of scale.json: `sides` (what was measured of
      each), `links`, `gradients`, and `predictions` (side -> link -> curves; see `_curves`).

    Raises:
      UsageError: for input that cannot be used.
      SideFailed: if a training that is measured fails.
    """
    links, local = _links(options), parse_link("--local", options.local)
    make_folder(options.out)
    measured = _measured(spec, options)
    predictions: dict[str, dict[str, Any]] = {}
    for side, found in measured.items():
        work = Workload(spec, found.compute, found.engine)
        predictions[side] = {
            name: _curves(work, _cluster(link, local, options), options.most)
            for name, link in links.items()
        }
    values = {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "command": command,
        **measured_here(),
        "sides": {
            side: {
                "compute": vars(found.compute),
                "collectives": COLLECTIVES.get(side, 1),
                "engine": vars(found.engine),
                "readings": {name: list(each) for name, each in found.readings.items()},
                "hidden": {name: list(each) for name, each in found.hidden.items()},
            }
            for side, found in measured.items()
        },
        "links": {name: vars(link) for name, link in links.items()},
        "local": vars(local),
        "gradients": gradients(spec, spec.training.batch_size)._asdict(),
        "settings": {
            name: getattr(options, name)
            for name in ("per_host", "servers", "stages", "micro_batches", "most", "steps")
        },
        "versions": {"parity": __version__, "numpy": np.__version__},
        "predictions": predictions,
    }
    text = scale_text(values)
    _write(options.out, "scale", values, text)
    write_whole(options.out / "scale.html", scale_html(values).encode())
    return f"{text}\n\npage: {options.out / 'scale.html'}", values


def check(spec: Spec, options: ScaleOptions, command: str) -> tuple[str, dict[str, Any]]:
    """Compare the model with real trainings; write check.json, check.txt and check.md.

    Returns:
      The text for a terminal, and the content of check.json: what `check_model` returns, and
      `within`, whether every prediction is as close as is allowed.
    """
    found = check_model(spec, options.sides, options.steps, options.out)
    values = {
        "preset": options.preset,
        "spec": spec.to_json(),
        "command": command,
        **measured_here(),
        **found,
        "within": found["worst"] <= found["allowed"],
    }
    text = check_text(values)
    _write(options.out, "check", values, text)
    write_whole(options.out / "check.md", check_markdown(values).encode() + b"\n")
    return text, values


def _links(options: ScaleOptions) -> dict[str, Link]:
    """Return name -> link, as given or as measured."""
    if options.measure is None:
        return parse_links(options.links)
    host, _, port = options.measure.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"--measure is {options.measure!r}; allowed: HOST:PORT")
    return {"measured": Link(*measure(host, int(port)))}


def _measured(spec: Spec, options: ScaleOptions) -> dict[str, Measured]:
    """Return what is known of each side, given or measured."""
    if options.compute is not None:
        compute = parse_compute(options.compute)
        collective, message, byte = parse_software(options.software or "0/0/0")
        return {
            side: Measured(compute, ENGINES[side].with_software(byte, message, collective))
            for side in options.sides
        }
    with Counter("measuring", RUNS * len(options.sides), "training") as progress:
        return {side: measured_step(spec, side, options, progress) for side in options.sides}


def _cluster(link: Link, local: Link, options: ScaleOptions) -> Cluster:
    return Cluster(
        link,
        local,
        options.per_host,
        options.servers,
        options.stages,
        options.micro_batches,
    )


def _curves(work: Workload, cluster: Cluster, most: int) -> dict[str, Any]:
    """Return the predictions for a link.

    Returns:
      `ranks`, a list; `weak` (the preset's batch on every rank) and `strong` (one such batch
      shared by all), each strategy -> lists with an entry for each number of ranks, None where
      it is not possible: `seconds`, `overlapped`, `sent`, and `speed_up`, rows per second as a
      multiple of one rank's; `fastest`, for each scaling and kind of servers, the ranges of
      ranks in which the ring or they are faster.
    """
    ranks = [2**i for i in range(most.bit_length()) if 2**i <= most]
    found: dict[str, Any] = {"ranks": ranks, "fastest": {}}
    for scaling in _SCALINGS:
        found[scaling] = {
            strategy: _curve(work, strategy, ranks, scaling, cluster) for strategy in STRATEGIES
        }
        found["fastest"][scaling] = {
            other: _faster(work, other, scaling, cluster, most)
            for other in ("servers", "server on each rank")
        }
    return found


def _rows(work: Workload, scaling: str, ranks: int) -> int:
    return work.batch * (ranks if scaling == "weak" else 1)


def _curve(
    work: Workload, strategy: str, ranks: list[int], scaling: str, cluster: Cluster
) -> dict[str, list[float | None]]:
    one = work.compute.seconds(work.batch) / work.batch  # seconds of a row on one rank
    curve: dict[str, list[float | None]] = {
        name: [] for name in ("seconds", "overlapped", "sent", "speed_up")
    }
    for count in ranks:
        rows = _rows(work, scaling, count)
        step = work.step(strategy, count, rows, cluster)
        curve["seconds"].append(step and step.seconds)
        curve["overlapped"].append(step and step.overlapped)
        curve["sent"].append(step and step.sent)
        curve["speed_up"].append(step and rows * one / step.seconds)
    return curve


def _faster(
    work: Workload, other: str, scaling: str, cluster: Cluster, most: int
) -> list[dict[str, Any]]:
    """Return the ranges of ranks, from 2 on, in which the ring or another is faster."""
    ranges: list[dict[str, Any]] = []
    names = ("ring", other)
    for count in range(2, most + 1):
        rows = _rows(work, scaling, count)
        steps = {name: work.step(name, count, rows, cluster) for name in names}
        known = {name: step.seconds for name, step in steps.items() if step is not None}
        if not known:
            break
        fastest = min(known, key=lambda name: known[name])
        if not ranges or ranges[-1]["strategy"] != fastest:
            ranges.append({"strategy": fastest, "first": count, "last": count})
        ranges[-1]["last"] = count
    return ranges


def _write(out: Path, name: str, values: Mapping[str, Any], text: str) -> None:
    content = json.dumps(values, indent=2).encode() + b"\n"
    write_whole(out / f"{name}.json", content)
    write_whole(out / f"{name}.txt", text.encode() + b"\n")
