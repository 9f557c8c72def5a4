"""Predicts steps on many ranks for `parity scale`, and writes what was found."""

from typing import Any

import numpy as np

from parity import __version__
from parity.base.files import make_folder
from parity.base.machine import measured_here
from parity.base.progress import ProgressBar
from parity.report.save import save_report
from parity.twins.cli.options import ScaleOptions
from parity.twins.scale.quantities import parse_compute, parse_link, parse_links
from parity.twins.scale.terminal import SCALINGS, scale_text
from parity.twins.scale.timed_step import ENGINES, RUNS, Measured, timed_step
from parity.twins.scale.workload import STRATEGIES, Cluster, Step, Workload, gradients
from parity.twins.spec.spec import Spec


def scale(spec: Spec, options: ScaleOptions, command: str) -> str:
    """Predict steps and write scale.json and scale.txt.

    Args:
      spec: the network, its text and its training.
      options: what to measure and to predict.
      command: the command that the user typed, which is recorded.

    Returns:
      The text for a terminal. scale.json has `sides` (what was measured of each), `links`,
      `gradients`, and `predictions` (side -> link -> curves; see `_curves`).

    Raises:
      UsageError: for input that cannot be used.
      SideFailed: if a training that is measured fails.
    """
    links, local = parse_links(options.links), parse_link("--local", options.local)
    make_folder(options.out)
    measured = _measured(spec, options)
    predictions: dict[str, dict[str, Any]] = {}
    for side, found in measured.items():
        work = Workload(spec, found.compute, found.engine)
        predictions[side] = {
            name: _curves(
                work, Cluster(link, local, options.per_host, options.servers), options.most
            )
            for name, link in links.items()
        }
    batch = spec.training.batch_size
    values = {
        "network": spec.network,
        "preset": options.preset,
        "spec": spec.to_json(),
        "command": command,
        **measured_here(),
        "sides": {
            side: {
                "compute": vars(found.compute),
                "engine": vars(found.engine),
                "readings": {name: list(each) for name, each in found.readings.items()},
            }
            for side, found in measured.items()
        },
        "links": {name: vars(link) for name, link in links.items()},
        "local": vars(local),
        "gradients": gradients(spec, batch, batch)._asdict(),
        "settings": {
            name: getattr(options, name) for name in ("per_host", "servers", "most", "steps")
        },
        "versions": {"parity": __version__, "numpy": np.__version__},
        "predictions": predictions,
    }
    text = scale_text(values)
    save_report("scale", text, values, options.out)
    return text


def _measured(spec: Spec, options: ScaleOptions) -> dict[str, Measured]:
    """Return what is known of each side, given or measured."""
    if options.compute is not None:
        compute = parse_compute(options.compute)
        return {side: Measured(compute, ENGINES[side], {}) for side in options.sides}
    with ProgressBar("measuring", RUNS * len(options.sides), "training") as progress:
        return {side: timed_step(spec, side, options, progress) for side in options.sides}


def _curves(work: Workload, cluster: Cluster, most: int) -> dict[str, Any]:
    """Return the predictions for a link.

    Returns:
      `ranks`, a list; `weak` (the preset's batch on every rank) and `strong` (one such batch
      shared by all), each strategy -> lists with an entry for each number of ranks, None where
      it is not possible: `seconds`, `overlapped`, `sent`, and `speed_up`, rows per second as a
      multiple of one rank's.
    """
    ranks = [2**i for i in range(most.bit_length()) if 2**i <= most]
    found: dict[str, Any] = {"ranks": ranks}
    for scaling in SCALINGS:
        found[scaling] = {
            strategy: _curve(work, strategy, ranks, scaling, cluster) for strategy in STRATEGIES
        }
    return found


def _curve(
    work: Workload, strategy: str, ranks: list[int], scaling: str, cluster: Cluster
) -> dict[str, list[float | None]]:
    one = work.compute.seconds(work.batch) / work.batch  # seconds of a row on one rank
    rows = [work.batch * (count if scaling == "weak" else 1) for count in ranks]
    steps = [work.step(strategy, *each, cluster) for each in zip(ranks, rows, strict=True)]
    return {
        **{name: [each and getattr(each, name) for each in steps] for name in Step._fields},
        "speed_up": [
            each and count * one / each.seconds for count, each in zip(rows, steps, strict=True)
        ],
    }
