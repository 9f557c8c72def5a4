"""Training without recording, for speed and perplexity."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from parity.base.files import make_folder
from parity.base.progress import ProgressBar
from parity.twins.launch.processes import SideProcess
from parity.twins.run.planned_run import PlannedRun, file_name
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.spec import preset
from parity.twins.training.checkpoint import Checkpoint, save_checkpoint
from parity.twins.training.loss_table import Row, read_losses

_TIMED_STEPS = 60  # where the whole training would take long: enough to measure the speed
# Beyond these, rounding has mostly grown so much that no comparison means anything: in float32
# it moves a loss of the encoder-decoder by 2e-4 up to step 50, and by 0.01 at step 60.
_MOVED_STEPS = 60
# On the built-in text, to see that a network learns; at most so many epochs. The steps of those
# of `proof` are more than _MOVED_STEPS.
_LEARNING_EPOCHS = {"tiny": 5, "proof": 12}


@dataclass(frozen=True)
class Training:
    """A training that recorded nothing.

    Attributes:
      summary: the content of its summary.json.
      rows: the rows of its losses.csv: step, loss per real token, real tokens.
      seconds: how long its process ran, or longer.
      folder: the folder of the run.
      batches_per_epoch: the number of steps in an epoch.
      alone: whether it had the machine to itself, so that its speed says something.
    """

    summary: dict[str, Any]
    rows: Sequence[Row]
    seconds: float
    folder: Path
    batches_per_epoch: int
    alone: bool

    @property
    def reported(self) -> dict[str, Any]:
        """Return the summary, without its speed where others trained at the same time."""
        return self.summary if self.alone else self.summary | {"tokens_per_second": {}}

    @property
    def perplexities(self) -> dict[int, float | None]:
        """Return the number of steps trained -> the perplexity of the validation text then."""
        return self._at_each_validation("valid_perplexity")

    @property
    def bleus(self) -> dict[int, float | None]:
        """Return the number of steps trained -> the BLEU of answers then, if it decodes."""
        return self._at_each_validation("valid_bleu")

    def _at_each_validation(self, name: str) -> dict[int, float | None]:
        steps = len(self.rows)
        ends = range(self.batches_per_epoch, steps + 1, self.batches_per_epoch)
        return dict(zip(dict.fromkeys([*ends, steps]), self.summary[name], strict=False))


def untraced_folder(run: PlannedRun, label: str) -> Path:
    """Return the folder of the training of a side that records nothing."""
    return run.options.out / "training" / file_name(label)


def train_untraced(run: PlannedRun, batches_per_epoch: int) -> Iterator[tuple[str, Training]]:
    """Train all sides without recording.

    Only the sides with the last number of replicas train for several epochs, to show what the
    network learns: the recorded steps have proved that the other sides are the same training.
    Those train for one epoch, all at the same time, because so few steps tell no speed. The
    others, and all sides where the text is not the built-in one, have the machine to
    themselves, one after another.

    Args:
      run: the run, in the precision to train in.
      batches_per_epoch: the number of steps in an epoch.

    Yields:
      The label of each side and its training, in the order of `untraced_order`.

    Raises:
      UsageError, NumericFailure, SideFailed: if a side fails, with its message.
    """
    # no side ends sooner than another
    run = replace(run, spec=run.spec.replace(patience=0))
    options, epochs, whole = run.options, run.spec.training.epochs, _whole(run)
    name = options.preset or ""
    # other epochs than the preset's have been asked for
    if whole and epochs == preset(run.spec.network, name).training.epochs:
        epochs = min(epochs, _LEARNING_EPOCHS[name])
        run = replace(run, spec=run.spec.replace(epochs=epochs))
    last = epochs * batches_per_epoch

    def start(label: str) -> tuple[float, SideProcess]:
        side, out = run.sides[label], untraced_folder(run, label)
        steps: int | None = min(_TIMED_STEPS, last)
        if whole:
            steps = None if _learns(run, label) else batches_per_epoch
        # those that end early show the speed alone
        evaluate = None if whole or last <= _TIMED_STEPS else 0
        more = {"steps": steps, "evaluate": evaluate, "out": out, "overwrite": True}
        if side.synchronous:
            more["checkpoint_every"] = step_to_save(steps or last, batches_per_epoch)
        log = f"{file_name(label)}-training.log"
        return time.monotonic(), stack.enter_context(run.start(side, log, **more))

    order = untraced_order(run)
    with ExitStack() as stack, ProgressBar("training", len(order), "training") as progress:
        short = [label for label in order if whole and not _learns(run, label)]
        together = {label: start(label) for label in short}
        for label in order:
            started, process = together.get(label) or start(label)
            process.wait()
            seconds, out = time.monotonic() - started, untraced_folder(run, label)
            summary = json.loads((out / "summary.json").read_text())
            rows = read_losses(out / "losses.csv")
            progress.update()
            alone = label not in together
            yield label, Training(summary, rows, seconds, out, batches_per_epoch, alone)


def untraced_order(run: PlannedRun) -> list[str]:
    """Return the labels of the sides in the order in which they train without recording."""
    return sorted(run.sides, key=lambda label: _whole(run) and _learns(run, label))


def _whole(run: PlannedRun) -> bool:
    """Return whether a run trains until the network has learnt its text."""
    return not run.options.data and run.options.preset in _LEARNING_EPOCHS


def _learns(run: PlannedRun, label: str) -> bool:
    return run.sides[label].replicas == run.options.replicas[-1]


@contextmanager
def train_moved(
    run: PlannedRun, label: str, training: Training, own: Checkpoint
) -> Iterator[Callable[[], Sequence[Row]]]:
    """Train a side again from initial weights that are moved by a unit in the last place each.

    How far it gets from the side's own training is what rounding alone does to it. It trains
    while the caller does something else, and is killed when the context is left.

    Args:
      run: the run, in the precision of the trainings.
      label: the side.
      training: its own training.
      own: a checkpoint of that.

    Yields:
      A function that waits for its end and returns the rows of its losses.csv.
    """
    side, out = run.sides[label], run.options.out / "training" / "moved"
    rmtree(out, ignore_errors=True)
    draw, snapshot = np.random.default_rng(0), initial_snapshot(own.spec)
    for name, array in snapshot.items():
        if name.startswith("weight/"):
            towards = np.where(draw.random(array.shape) < 0.5, -np.inf, np.inf)
            snapshot[name] = np.nextafter(array, towards.astype(array.dtype))
    state = own.state and {name: np.zeros_like(array) for name, array in own.state.items()}
    make_folder(out)
    start = save_checkpoint(out, replace(own, step=0, snapshot=snapshot, state=state))
    more = {
        "steps": min(len(training.rows), _MOVED_STEPS),
        "evaluate": 0,
        "out": out / "run",
        "resume": start,
    }
    with run.start(side, "moved-training.log", **more) as process:

        def rows() -> Sequence[Row]:
            process.wait()
            return read_losses(out / "run" / "losses.csv")

        yield rows


def step_to_save(steps: int, per_epoch: int) -> int | None:
    """Return after which step to save, once, within an epoch and with two steps to follow."""
    within = [each for each in range((steps + 1) // 2, steps - 1) if each % per_epoch]
    return max(within, default=None)
