"""Training without recording: each side alone on the machine, for its speed and perplexity."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.base.progress import Counter
from parity.twins.cli.options import RunOptions
from parity.twins.run.start_side import Starter, file_name
from parity.twins.spec.spec import Spec
from parity.twins.trace.side import TrainedSide
from parity.twins.training.loss_table import Row, read_losses

_TIMED_STEPS = 60  # where the whole training would take long: enough to measure the speed
_LEARNING_EPOCHS = 5  # on the built-in text: enough to see that a network learns


@dataclass(frozen=True)
class Training:
    """A training that recorded nothing.

    Attributes:
      summary: the content of its summary.json.
      rows: the rows of its losses.csv: step, loss per real token, real tokens.
      seconds: how long its process ran.
    """

    summary: dict[str, Any]
    rows: Sequence[Row]
    seconds: float


def train_untraced(
    spec: Spec,
    sides: Mapping[str, TrainedSide],
    options: RunOptions,
    starter: Starter,
    batches_per_epoch: int,
) -> dict[str, Training]:
    """Train the sides one after another, in the last precision of the run.

    Only the sides with the last number of replicas train for several epochs, to show what the
    network learns: the recorded steps have proved that the other sides are the same training.
    Those train for one epoch, which shows their speed.

    Args:
      spec: the network, its text and its training.
      sides: label -> side.
      options: the options of the run.
      starter: starts the sides.
      batches_per_epoch: the number of steps in an epoch.

    Returns:
      Label -> the training of that side.

    Raises:
      UsageError, NumericFailure, SideFailed: if a side fails, with its message.
    """
    whole = options.data is None and options.preset in ("proof", "tiny")
    spec = spec.replace(dtype=options.dtype[-1])
    if whole and options.preset == "tiny":
        spec = spec.replace(epochs=min(spec.training.epochs, _LEARNING_EPOCHS))
    trained: dict[str, Training] = {}
    with Counter("training", len(sides), "training") as progress:
        for label, side in sides.items():
            out = options.out / "training" / file_name(label)
            steps: int | None = _TIMED_STEPS
            if whole:
                learns = side.replicas == options.replicas[-1]
                steps = None if learns else batches_per_epoch
            log = f"{file_name(label)}-training.log"
            started = time.monotonic()
            # those that end early show the speed alone
            ends = whole or spec.training.epochs * batches_per_epoch <= _TIMED_STEPS
            evaluate = None if ends else 0
            more = {"steps": steps, "evaluate": evaluate, "out": out, "overwrite": True}
            with starter.start(side, spec, log, **more) as process:
                process.wait()
            seconds = time.monotonic() - started
            summary = json.loads((out / "summary.json").read_text())
            trained[label] = Training(summary, read_losses(out / "losses.csv"), seconds)
            progress.update()
    return trained
