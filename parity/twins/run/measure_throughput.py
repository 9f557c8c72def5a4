"""Training without recording: each side alone on the machine, for its speed and perplexity."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.base.progress import ProgressBar
from parity.twins.run.planned_run import PlannedRun, file_name
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


def train_untraced(run: PlannedRun, batches_per_epoch: int) -> dict[str, Training]:
    """Train the sides one after another.

    Only the sides with the last number of replicas train for several epochs, to show what the
    network learns: the recorded steps have proved that the other sides are the same training.
    Those train for one epoch, which shows their speed.

    Args:
      run: the run, in the precision to train in.
      batches_per_epoch: the number of steps in an epoch.

    Returns:
      Label -> the training of that side.

    Raises:
      UsageError, NumericFailure, SideFailed: if a side fails, with its message.
    """
    options, epochs = run.options, run.spec.training.epochs
    whole = options.data is None and options.preset in ("proof", "tiny")
    if whole and options.preset == "tiny":
        epochs = min(epochs, _LEARNING_EPOCHS)
        run = replace(run, spec=run.spec.replace(epochs=epochs))
    trained: dict[str, Training] = {}
    with ProgressBar("training", len(run.sides), "training") as progress:
        for label, side in run.sides.items():
            out = options.out / "training" / file_name(label)
            steps: int | None = _TIMED_STEPS
            if whole:
                learns = side.replicas == options.replicas[-1]
                steps = None if learns else batches_per_epoch
            log = f"{file_name(label)}-training.log"
            started = time.monotonic()
            # those that end early show the speed alone
            ends = whole or epochs * batches_per_epoch <= _TIMED_STEPS
            evaluate = None if ends else 0
            more = {"steps": steps, "evaluate": evaluate, "out": out, "overwrite": True}
            with run.start(side, log, **more) as process:
                process.wait()
            seconds = time.monotonic() - started
            summary = json.loads((out / "summary.json").read_text())
            trained[label] = Training(summary, read_losses(out / "losses.csv"), seconds)
            progress.update()
    return trained
