"""`python -m parity converge`: trains all sides from several seeds and compares the results."""

import hashlib
import itertools
import math
import platform
import statistics
from collections.abc import Mapping
from typing import Any

from parity.base.files import make_folder
from parity.base.machine import measured_here
from parity.twins.cli.options import ConvergeOptions, TrainOptions
from parity.twins.converge.equivalence import LEVEL, POWER, paired_equivalence, pairs_needed
from parity.twins.converge.quantities import Quantity, quantities
from parity.twins.converge.trainings import Run, Starters, Trainings, whole_sides
from parity.twins.launch.checkout import check_installed
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.networks.network import Published
from parity.twins.spec.spec import Spec, preset
from parity.twins.trace.side import TrainedSide
from parity.twins.training.layout import check_rows
from parity.twins.training.text_source import read_text

EQUIVALENT, NOT_SHOWN = "equivalent", "not shown"

Summaries = Mapping[Run, Mapping[str, Any]]


def converge(
    spec: Spec, options: ConvergeOptions, command: str, starters: Starters | None = None
) -> dict[str, Any]:
    """Train all sides from all seeds, and return the comparison as plain values.

    Args:
      spec: the network, its text and its training.
      options: what to train and how to compare it.
      command: the command that the user typed, which is recorded.
      starters: starts the trainings of some sides; the others start in a new interpreter.

    Returns:
      `verdict` (EQUIVALENT or NOT_SHOWN, of the sides that are meant to train in the same
      way; None if no two are), `runs` (side -> seed -> summary), `quantities`
      (name -> values of each side, and the test of each pair of sides), `published`, and what
      was trained, where and when.

    Raises:
      UsageError: for input that cannot be used, or a peer that is not installed.
      NumericFailure: if a training diverges.
      SideFailed: if a training crashes.
    """
    sides = whole_sides(options)
    check_installed(options.peers)
    make_folder(options.out)
    text_options = TrainOptions(
        network=options.network,
        preset=options.preset,
        data=options.data,
        user_dictionary=options.user_dictionary,
        on_empty=options.on_empty,
        cache=options.cache,
    )
    whole, text = read_text(spec, text_options)
    check_rows(text, options.replicas)
    steps = whole.training.epochs * text.train.batches_per_epoch
    trainings = Trainings(whole, options, text.content_hash, steps, starters or {})
    summaries = trainings.all(sides)
    compared = {
        quantity.name: _compared(quantity, summaries, sides)
        for quantity in quantities(spec, options)
    }
    shown = [
        pair["shown"]
        for each in compared.values()
        for pair in each["pairs"]
        if pair["same_training"]
    ]
    verdict = EQUIVALENT if all(shown) else NOT_SHOWN
    return {
        "verdict": verdict if shown else None,
        "network": spec.network,
        "preset": options.preset,
        "spec": whole.to_json(),
        "data": None if options.data is None else options.data.name,
        "steps": steps,
        "level": LEVEL,
        "power": POWER,
        "replicas": options.replicas,
        "settings": options.settings.given,
        "kernels": options.kernels,
        "runs": {
            name: {str(run.seed): summaries[run] for run in summaries if run.name == name}
            for name in sides
        },
        "quantities": compared,
        "published": _published(spec, options, compared),
        **measured_here(),
        "command": command,
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {
            name: version
            for summary in summaries.values()
            for name, version in summary["versions"].items()
        },
    }


def _compared(
    quantity: Quantity, summaries: Summaries, sides: Mapping[str, TrainedSide]
) -> dict[str, Any]:
    """Return a quantity's values of each side, and the test of each pair of sides."""
    values = {
        name: [
            quantity.value(summary, f"{name}, seed {run.seed}")
            for run, summary in summaries.items()
            if run.name == name
        ]
        for name in sides
    }
    return {
        "relative": quantity.relative,
        "margin": quantity.margin,
        "form": quantity.form,
        "sides": {side: _described(quantity, each) for side, each in values.items()},
        "pairs": [
            _pair(quantity, values, a, b) | {"same_training": train_alike(sides[a], sides[b])}
            for a, b in itertools.combinations(sides, 2)
        ],
    }


def _described(quantity: Quantity, values: list[float]) -> dict[str, Any]:
    """Return one side's values, with their mean and standard deviation.

    The mean of a relative quantity is the geometric one, whose ratios are the mean ratios.
    """
    mean = statistics.fmean(map(quantity.scaled, values))
    return {
        "values": values,
        "mean": math.exp(mean) if quantity.relative else mean,
        "deviation": statistics.stdev(values),
    }


def train_alike(a: TrainedSide, b: TrainedSide) -> bool:
    """Return whether two sides are meant to train in the same way.

    All synchronous ones are, unless their replicas count differently; asynchronous ones, if
    they keep to schedules of the same kind.
    """
    if a.synchronous and b.synchronous:
        return a.averages_replicas_alike == b.averages_replicas_alike
    return a.synchronous == b.synchronous and a.settings == b.settings


def _pair(
    quantity: Quantity, values: Mapping[str, list[float]], a: str, b: str
) -> dict[str, Any]:
    scaled = [[quantity.scaled(value) for value in values[side]] for side in (a, b)]
    tested = paired_equivalence(scaled[0], scaled[1], quantity.scaled_margin)
    return {
        "a": a,
        "b": b,
        "difference": quantity.difference(tested.mean),
        "low": quantity.difference(tested.low),
        "high": quantity.difference(tested.high),
        "p": tested.p,
        "shown": tested.shown,
        "seeds_needed": pairs_needed(tested.deviation, tested.margin),
    }


def _published(
    spec: Spec, options: ConvergeOptions, compared: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the published result beside ours; None where the preset has none.

    `not_comparable` says why ours is a result of something else, if it is: another text, or a
    spec that a flag has changed. The published result has no part in the verdict: it is that of
    a single training, from an unknown seed.
    """
    published: Published | None = NETWORKS[spec.network].presets[options.preset].published
    if published is None:
        return None
    kept = {"seed": spec.training.seed, "dtype": spec.training.dtype}
    reasons = []
    if _training_text_hash(options) != published.train_sha256:
        reasons.append(f"the text is not {published.corpus}")
    if preset(spec.network, options.preset).replace(**kept) != spec:
        reasons.append("flags change the preset")
    mine = {side: each["mean"] for side, each in compared["test perplexity"]["sides"].items()}
    return {
        "test_perplexity": published.test_perplexity,
        "valid_perplexity": published.valid_perplexity,
        "corpus": published.corpus,
        "source": published.source,
        "not_comparable": "; ".join(reasons) or None,
        "ratio": {side: value / published.test_perplexity for side, value in mine.items()}
        if not reasons
        else None,
    }


def _training_text_hash(options: ConvergeOptions) -> str | None:
    """Return the sha256 of the training text; None if it is not one file in a folder."""
    if options.data is None:
        return None
    for name in ("ptb.train.txt", "train.txt"):
        path = options.data / name
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
            return digest.hexdigest()
    return None
