"""The layout of a run on the machine: how many replicas, and the threads of each.

Where the options leave it open there is a default. A long training times a few steps of each
layout that computes the same, in a process of its own, as threads are set before an engine is
imported.
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
from typing import Any, BinaryIO, NamedTuple

from parity.base.errors import UsageError
from parity.base.files import CONFIG
from parity.base.machine import usable_cores
from parity.base.measured_once import MeasuredOnce
from parity.base.process import die_with_parent
from parity.base.progress import ProgressBar
from parity.base.text import counted
from parity.twins.cli.config import config_text, values_of_run
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.flops import product_flops
from parity.twins.training.meter import WARM_UP
from parity.twins.training.rank_agreement import installed_versions
from parity.twins.training.text_source import TextSource

# Of all layouts that keep two cores busy, one replica per core was the fastest
# (docs/performance.md). With more replicas each has fewer rows, which makes its matrix products
# slower. More than 8 were not measured.
_MOST_REPLICAS = 8
_SPLITS = ("train", "valid", "test")

# A training that would take less at `_RATE` is not worth the minute that measuring takes.
_WORTH_SECONDS = 600.0
_RATE = 50e9  # FLOP/s of a core: what a step's matrix products reach on a recent processor
_FASTER = 1.05  # how many times as fast as the default another must be: one run differs by less
_TIMED_SECONDS, _FEWEST, _MOST = 2.0, 6, 60  # of the steps that are timed; and their number
_TURNS = 2  # how often each layout is timed; the faster time counts: other work only slows
_SAMPLED_BATCHES = 8  # batches whose sizes stand for all
_LONGEST = 180.0  # seconds that measuring one layout may take

# Settings of a training on which its speed does not depend.
_SAME_SPEED = ("learning_rate", "decay", "decay_after", "epochs", "patience", "seed")


class Layout(NamedTuple):
    """How a run uses the machine.

    Attributes:
      replicas: the number of replicas that share each batch.
      threads: the number of CPU threads of each replica, or of each of its stages.
    """

    replicas: int
    threads: int

    @property
    def text(self) -> str:
        """Return both numbers, such as "2 x 1"."""
        return f"{self.replicas} x {self.threads}"


def choose_layout(options: TrainOptions, smallest_batch: int, processes: int = 1) -> Layout:
    """Choose replicas and threads where the options leave them open.

    On CPUs there is one replica per core, at most 8, and on GPUs there are two. A replica whose
    layers are divided into stages, which compute at the same time, needs a core for each of
    them. In several processes there is one replica in each. Replicas and stages have as many
    threads as their share of the cores.

    Args:
      options: the command line, with the settings of the strategy.
      smallest_batch: the rows of the smallest batch, of which every replica needs one.
      processes: the number of processes that share the replicas.
    """
    cores, replicas = usable_cores(), options.replicas
    settings = options.settings
    stages = settings.stages or 1
    if replicas is None and (processes > 1 or settings.processes or settings.servers):
        replicas = processes
    if replicas is None:
        replicas = min(cores // stages, _MOST_REPLICAS) if options.device == "cpu" else 2
        replicas = max(1, min(replicas, smallest_batch))
    return Layout(replicas, options.threads or max(1, cores // (replicas * stages)))


def layouts(default: Layout, stages: int, smallest_batch: int | None) -> tuple[Layout, ...]:
    """Return the layouts that keep every core busy, the default one first.

    Args:
      default: what `choose_layout` returns.
      stages: the stages of each replica, each of which needs a core.
      smallest_batch: the rows of the smallest batch; None to keep the number of replicas, whose
        threads may then be fewer, too.
    """
    if smallest_batch is None:
        fewer = (
            default.threads >> halvings for halvings in range(default.threads.bit_length())
        )
        return tuple(Layout(default.replicas, threads) for threads in fewer)
    free = max(1, usable_cores() // stages)
    most = min(free, _MOST_REPLICAS, smallest_batch)
    found = (Layout(each, free // each) for each in range(most, 0, -1) if free % each == 0)
    return tuple(dict.fromkeys((default, *found)))


def layout_text(layout: Layout, why: str = "") -> str:
    """Return a layout in words, why it was chosen, and the flags that change it."""
    chosen = (
        f"{counted(layout.replicas, 'replica')}, {counted(layout.threads, 'thread')} each, on "
        f"{counted(usable_cores(), 'core')}"
    )
    return "; ".join(filter(None, (chosen, why, "--replicas and --threads change it")))


def smallest_batch(text: Any) -> int:
    """Return the number of rows in the smallest batch of any split of a TextSource."""
    return min(int(getattr(text, split).smallest_batch) for split in _SPLITS)


def check_rows(text: TextSource, replicas: int) -> None:
    """Check, before anything is built, that every batch has a row for each replica.

    Raises:
      UsageError: if a batch has fewer rows than there are replicas.
    """
    for split in _SPLITS:
        try:
            split_rows(getattr(text, split).smallest_batch, replicas)
        except UsageError as error:
            raise UsageError(f"{split}: {error}") from None


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
        stages = options.settings.stages or 1
        return layouts(default, stages, smallest if equal else None)

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
        by_name = {layout.text: each for layout, each in measured.items()}
        chosen = once.remember(list(fastest(measured)), by_name)
        said = f"measured: {_speeds_text(measured)}; --no-calibrate measures nothing"
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


def _speeds_text(seconds: Mapping[Layout, float]) -> str:
    return ", ".join(f"{each.text} {s * 1000:,.1f} ms a step" for each, s in seconds.items())


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
