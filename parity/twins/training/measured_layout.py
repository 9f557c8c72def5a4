"""Chooses a run's layout by measuring those that compute the same.

A few steps of each layout are timed in a process of its own, as threads are set before an
engine is imported. Only a long training is worth it.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from parity.base.errors import UsageError
from parity.base.files import CONFIG
from parity.base.machine import usable_cores
from parity.base.measured_once import MeasuredOnce
from parity.base.process import die_with_parent
from parity.base.progress import ProgressBar
from parity.twins.cli.config import config_text, values_of_run
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import WARM_UP
from parity.twins.training.rank_agreement import installed_versions
from parity.twins.training.replicas_and_threads import (
    Layout,
    choose_layout,
    layouts,
    smallest_batch,
    stages_of,
)
from parity.twins.training.text_source import TextSource

# A training that would take less at `_RATE` is not worth the minute that measuring takes.
_WORTH_SECONDS = 600.0
_RATE = 50e9  # FLOP/s of a core: what a step's matrix products reach on a recent processor
_FASTER = 1.05  # how many times as fast as the default another must be: one run differs by less
_TIMED_SECONDS, _FEWEST, _MOST = 2.0, 6, 60  # of the steps that are timed; and their number
_TURNS = 2  # how often each layout is timed; the faster time counts: other work only slows
_SAMPLED_BATCHES = 8  # batches whose sizes stand for all
_LONGEST = 180.0  # seconds that measuring one layout may take

# Settings of a training on which its speed does not depend.
_SAME_SPEED = ("learning_rate", "decay", "decay_after", "epochs", "seed")


@dataclass(frozen=True)
class Calibration:
    """What measures the layouts of one framework's trainings.

    Attributes:
      framework: the framework's name.
      entry: the strategy.
      asked: the network and its training, before the text has set its vocabulary sizes.
    """

    framework: str
    entry: StrategyEntry
    asked: Spec

    def candidates(self, options: TrainOptions, smallest: int) -> tuple[Layout, ...]:
        """Return the layouts to choose from, the default one first; it alone if that is given.

        They keep every core busy, and train the same but for rounding.

        Args:
          options: the command line, with the settings of the strategy.
          smallest: the rows of the smallest batch.
        """
        default = choose_layout(options, smallest)
        left_open = options.replicas is None and options.threads is None
        if not left_open or options.device != "cpu" or self.entry.traits.processes:
            return (default,)
        equal = self.entry.traits.synchronous and options.settings.shard_weights != "equal"
        return layouts(default, stages_of(options), smallest if equal else None)

    def layout(
        self, spec: Spec, text: TextSource, options: TrainOptions, *, resumes: bool
    ) -> tuple[Layout, str] | None:
        """Return the fastest layout, and what to say about it; None to leave it at the default.

        Args:
          spec: the network and its training.
          text: the text that it trains on.
          options: the options of the run, with the settings of the strategy.
          resumes: whether the run goes on from a checkpoint; it then keeps its layout.
        """
        smallest = smallest_batch(text)
        of_run = layout_of_run(options, self.entry, smallest) if resumes else None
        found = self.candidates(options, smallest)
        if of_run is not None or not self._is_worth_it(spec, text, options, found):
            return of_run
        once = self._once(spec, options, found)
        kept = once.read()
        if kept is not None:
            said = f"the fastest of {len(found)} layouts measured here before: {once.path}"
            return Layout(*kept), said
        steps = _steps(_step_seconds(spec, text))
        try:
            measured = dict.fromkeys(found, math.inf)
            turns = list(found) * _TURNS
            with ProgressBar("measuring layouts", len(turns), "run") as progress:
                for layout in turns:
                    taken = self._measured(options, layout, steps)
                    measured[layout] = min(measured[layout], taken)
                    progress.update()
        except (UsageError, OSError) as error:
            return found[0], f"the default, as others could not be measured: {error}"
        chosen = once.remember(list(fastest(measured)), texts(measured))
        said = f"measured: {speeds_text(measured)}; --no-calibrate measures nothing"
        return Layout(*chosen), said

    def kept(self, spec: Spec, text: TextSource, options: TrainOptions) -> Layout | None:
        """Return the layout that was measured earlier; the default one if none is to be.

        Returns:
          None if a run would measure it first.
        """
        found = self.candidates(options, smallest_batch(text))
        if not self._is_worth_it(spec, text, options, found):
            return found[0]
        kept = self._once(spec, options, found).read()
        return None if kept is None else Layout(*kept)

    def _is_worth_it(
        self, spec: Spec, text: TextSource, options: TrainOptions, found: Sequence[Layout]
    ) -> bool:
        trains = options.trace is None and options.profile is None and not options.evaluate_only
        if len(found) == 1 or not options.calibrate or not trains:
            return False
        steps = options.steps or spec.training.epochs * text.train.batches_per_epoch
        return steps * _step_seconds(spec, text) >= _WORTH_SECONDS

    def _once(
        self, spec: Spec, options: TrainOptions, found: Sequence[Layout]
    ) -> MeasuredOnce[list[int]]:
        """Return where the choice is kept: another file for whatever changes the speed."""
        training = {
            name: value
            for name, value in spec.to_json()["training"].items()
            if name not in _SAME_SPEED
        }
        choices = [list(each) for each in found]
        facts = {
            "cores": usable_cores(),
            "versions": installed_versions(),
            "strategy": [self.entry.name, options.settings.text],
            "kernels": options.kernels,
            "layouts": choices,
            "spec": spec.to_json() | {"training": training},
        }
        return MeasuredOnce(f"layout-{self.framework}", facts, choices)

    def _measured(self, options: TrainOptions, layout: Layout, steps: int) -> float:
        """Return the median seconds of a step of a short training with a layout.

        Raises:
          UsageError: if it fails, or writes no summary.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            short = replace(
                options,
                replicas=layout.replicas,
                threads=layout.threads,
                strategy=self.entry.name,
                steps=WARM_UP + steps,
                out=folder / "out",
                resume=None,
                overwrite=False,
                checkpoint_every=None,
                evaluate=0,
                calibrate=False,
            )
            config, log = folder / CONFIG, folder / "log"
            left_out = ("resume", "overwrite", "allow_change")
            config.write_text(config_text(short, self.asked, left_out))
            train = FRAMEWORKS[self.framework].path / "train.py"
            with log.open("wb") as file:
                done = _run([sys.executable, str(train), "--config", str(config)], file)
            try:
                summary = json.loads((short.out / "summary.json").read_text())
                return float(summary["seconds_per_step"])
            except (OSError, ValueError, KeyError, TypeError):
                lines = log.read_text(errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "no output")
                ended = f"{layout.text} ended with status {done}: {last}"
                raise UsageError(ended) from None


def layout_of_run(
    options: TrainOptions, entry: StrategyEntry, smallest: int
) -> tuple[Layout, str] | None:
    """Return the layout that a run to resume had, and what to say about it.

    Reusing it keeps a resumed run bit-identical, even if another layout is faster today.

    Args:
      options: the command line, with the settings of the strategy.
      entry: the strategy.
      smallest: the rows of the smallest batch.

    Returns:
      None if options say the layout, or the run's does not fit them.
    """
    given = options.replicas is not None or options.threads is not None
    if given or options.resume is None or options.evaluate_only or entry.traits.processes:
        return None
    path = Path(options.resume) if options.resume else options.out
    folders = [path, path.parent, path.parent.parent][: 3 if path.is_file() else 2]
    folder = next((each for each in folders if (each / CONFIG).exists()), options.out)
    values = values_of_run(folder)
    replicas, threads = values.get("replicas"), values.get("threads")
    same: dict[str, object] = {"strategy": entry.name, "device": options.device}
    same |= {"stages": options.settings.stages}
    if any(values.get(name) != value for name, value in same.items()):
        return None
    if type(replicas) is not int or type(threads) is not int or threads < 1:
        return None
    if not 1 <= replicas <= smallest:
        return None
    return Layout(replicas, threads), f"as {folder / CONFIG} says"


def fastest(seconds: Mapping[Layout, float]) -> Layout:
    """Return the layout with the shortest step; the first one unless another is clearly faster.

    Args:
      seconds: layout -> seconds of a step, the default layout first.
    """
    default, best = next(iter(seconds)), min(seconds, key=lambda each: seconds[each])
    return best if seconds[default] > _FASTER * seconds[best] else default


def texts(values: Mapping[Layout, float]) -> dict[str, float]:
    """Return values by the names of their layouts, such as "2 x 1"."""
    return {layout.text: value for layout, value in values.items()}


def speeds_text(seconds: Mapping[Layout, float]) -> str:
    """Return the measured layouts in words."""
    return ", ".join(
        f"{name} {each * 1000:,.1f} ms a step" for name, each in texts(seconds).items()
    )


def _step_seconds(spec: Spec, text: TextSource) -> float:
    """Return how long a step takes at least, from its matrix products."""
    count = min(_SAMPLED_BATCHES, text.train.batches_per_epoch)
    flops = [
        product_flops(
            spec, step_inputs(spec, step, text.train.batch(step), train=False).lengths
        )
        for step in range(count)
    ]
    return float(sum(flops) / count / (_RATE * usable_cores()))


def _steps(seconds: float) -> int:
    """Return how many steps to time."""
    return max(_FEWEST, min(_MOST, round(_TIMED_SECONDS / max(seconds, 1e-9))))


def _run(command: list[str], output: BinaryIO) -> int:
    """Run a command that ends with this process, and return its status.

    Raises:
      UsageError: if it takes too long.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(die_with_parent, os.getpid()),
    ) as process:
        try:
            return process.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            raise UsageError(f"a few steps took longer than {_LONGEST:.0f} s") from None
        finally:
            process.kill()
