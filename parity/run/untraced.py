"""Untraced training: each side alone on the machine, for its speed and what it learns."""

import json
from collections.abc import Mapping
from typing import Any

from parity.cli.options import RunOptions
from parity.run.starting import Starter, file_name
from parity.spec.spec import Spec
from parity.trace.side import Side

_TIMED_STEPS = 60  # for throughput alone, where the whole training would be long
_LEARNING_EPOCHS = 5  # of the embedded text: enough to see that a network learns


def train_untraced(
    spec: Spec,
    sides: Mapping[str, Side],
    options: RunOptions,
    starter: Starter,
    batches_per_epoch: int,
) -> dict[str, dict[str, Any]]:
    """Train the sides one after another, in the last precision of the run.

    What a side learns is seen at the last number of replicas: recorded steps have shown that
    the others are the same training. They train for an epoch, for their speed.

    Args:
      spec: what to train.
      sides: label -> side.
      options: of the run.
      starter: starts the sides.
      batches_per_epoch: steps of an epoch.

    Returns:
      Label -> what the side wrote to summary.json.

    Raises:
      UsageError, NumericFailure, SideFailed: as the sides found it.
    """
    whole = options.data is None and options.preset == "tiny"
    spec = spec.replace(dtype=options.dtype[-1])
    if whole:
        spec = spec.replace(epochs=min(spec.training.epochs, _LEARNING_EPOCHS))
    found: dict[str, dict[str, Any]] = {}
    for label, side in sides.items():
        out = options.out / "training" / file_name(label)
        steps: int | None = _TIMED_STEPS
        if whole:
            learns = side.replicas == options.replicas[-1]
            steps = None if learns else batches_per_epoch
        log = f"{file_name(label)}-training.log"
        with starter.start(side, spec, log, steps=steps, out=out, overwrite=True) as process:
            process.wait()
        found[label] = json.loads((out / "summary.json").read_text())
    return found
