"""Starts a training: all of `train.py` but for the engine that it loads."""

import math
import resource
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import psutil

from parity.base.errors import Interrupted, UsageError
from parity.base.machine import in_words
from parity.base.progress import say
from parity.twins.cli.command_line import train_command
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.group import ProcessGroup
from parity.twins.processes.hosts import read_hosts
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters, snapshot_shapes
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry, StrategyRegistry
from parity.twins.training.checkpoint_contents import shared_checkpoint
from parity.twins.training.evaluate import evaluate_only
from parity.twins.training.layout import (
    check_rows,
    with_layout,
)
from parity.twins.training.loop import Run
from parity.twins.training.process_group import number_of_workers, process_group
from parity.twins.training.rank_agreement import (
    StopRequest,
    catch_signals,
    facts_of_run,
    serve,
)
from parity.twins.training.run_folder import RunFolder
from parity.twins.training.strategy import Build, OnlyAnswers, Strategy
from parity.twins.training.summary import Summary
from parity.twins.training.text_source import TextSource, read_text
from parity.twins.training.timeline import PROFILED, profile_training
from parity.twins.training.worker_processes import led_by_rank_0

_COPIES = 3  # see `check_memory`


@dataclass(frozen=True)
class Side:
    """What one side brings to a training.

    Attributes:
      make_strategy: builds the training; called only after the input has been checked.
      versions: returns the versions of the framework and of NumPy.
      group: the processes that share the training; by default this one alone. Rank 0 writes all
        files.
      entry: the strategy; None if a run that is resumed need not keep its layout.
      asked: the network and its training before the text has set its vocabulary sizes, which
        config.yaml is to say; None for those with them.
    """

    make_strategy: Callable[[Spec, Build], Strategy]
    versions: Callable[[], dict[str, str]]
    group: ProcessGroup = field(default_factory=ProcessGroup)
    entry: StrategyEntry | None = None
    asked: Spec | None = None


def train_with(
    strategies: StrategyRegistry,
    load_engine: Callable[[int, str], object],
    versions: Callable[[], dict[str, str]],
) -> None:
    """Train with a framework as the command line says, and exit.

    Args:
      strategies: the framework's strategies.
      load_engine: a function (threads, device) that imports the framework.
      versions: returns the versions of the framework and of NumPy.
    """
    framework = strategies.framework

    def train(spec: Spec, options: TrainOptions) -> None:
        entry, options = _settled(strategies, spec, options)

        def make_strategy(spec: Spec, build: Build) -> Strategy:
            load_engine(build.threads, build.device)
            # an engine that waits for a rank that is slower to load it may stop all threads
            build.group.barrier()
            answers = options.evaluate_only and NETWORKS[spec.network].decodes
            if answers and not build.evaluates and build.group.size == 1:
                decoder = FRAMEWORKS[framework].load("decode:Decoder")(spec, build)
                return cast(Strategy, OnlyAnswers(framework, entry, spec, build, decoder))
            made: Strategy = strategies.make(entry.name, spec, build)
            return made

        with process_group(framework, entry, options) as group:
            side = Side(make_strategy, versions, group, entry, spec)
            spec, text = read_text(spec, options)
            run_training(side, text, spec, options)

    train_command(framework, train, partial(resolved, strategies))


def resolved(strategies: StrategyRegistry, spec: Spec, options: TrainOptions) -> TrainOptions:
    """Return the options that a run would have, with all defaults, without starting it.

    Args:
      strategies: the framework's strategies.
      spec: the network and its training.
      options: the command line.

    Raises:
      UsageError: for a strategy, a setting or a text that a run would refuse as well.
    """
    entry, options = _settled(strategies, spec, options)
    workers = 1
    if entry.traits.processes:
        hosts = None if options.hosts is None else read_hosts(options.hosts)
        workers = number_of_workers(options, hosts)
    text = read_text(spec, options)[1]
    return _with_strategy(with_layout(options, entry, text, workers)[0], entry)


def _settled(
    strategies: StrategyRegistry, spec: Spec, options: TrainOptions
) -> tuple[StrategyEntry, TrainOptions]:
    """Return the strategy, and the options with its settings filled in.

    What a strategy cannot do is refused here, before any text is read or process started.
    """
    settings = strategies.settings(options.strategy, options.settings)
    strategies.check_training(options.strategy, spec.training)
    return strategies.entry(options.strategy), replace(options, settings=settings)


def _with_strategy(options: TrainOptions, entry: StrategyEntry) -> TrainOptions:
    """Return options that name the strategy, whoever chose it."""
    return replace(options, strategy=entry.name, sync=False)  # the name says it


def run_training(
    side: Side, text: TextSource, spec: Spec, options: TrainOptions
) -> Summary | None:
    """Train a network, validate it after each epoch and test it at the end.

    Args:
      side: what trains it.
      text: the text to train on.
      spec: the network and its training, with the vocabulary sizes of the text.
      options: the options of the command line, such as --resume and --profile.

    Returns:
      The summary of the run; None if it was profiled, or did not train.

    Raises:
      UsageError: for input that cannot be used.
      NumericFailure: if a loss or gradient is not finite; earlier checkpoints are kept.
      Interrupted: after SIGINT, SIGTERM or SIGHUP, once a checkpoint has been written.
    """
    group = side.group
    folder = RunFolder(options, group.run)
    options, about_layout = with_layout(options, side.entry, text, group.workers)
    assert options.replicas is not None
    assert options.threads is not None
    check_rows(text, options.replicas)
    check_memory(spec)
    group.join(facts_of_run(spec, text, options))
    build = Build(
        options.replicas,
        options.device,
        options.threads,
        options.kernels,
        options.evaluates,
        options.log_device_placement,
        options.settings,
        group,
    )
    if group.serves:
        serve(spec, build)
        return None
    notes = [about_layout] if about_layout else []
    opened = folder.opened(spec, text.content_hash, notes)
    with opened if group.rank == 0 else nullcontext() as found:
        checkpoint = shared_checkpoint(group, found)
        for note in notes:
            say(note)
        with group.steps.start() if group.size > 1 else nullcontext():
            strategy = side.make_strategy(spec, build)
        with led_by_rank_0(strategy, text) as leading:
            if leading is None:
                return None
            if options.evaluate_only:
                assert checkpoint is not None
                with catch_signals() as request:
                    check = partial(_check_stop, request)
                    evaluate_only(leading, text, options, checkpoint, check)
                return None
            if options.profile is not None:
                options = replace(options, steps=options.steps or PROFILED)
            run = Run(leading, text, options, side.versions(), checkpoint)
            if options.profile is not None:
                profile_training(run, options.profile)
                return None
            if run.group.rank == 0:  # only now: a failure above leaves the old run untouched
                config = _with_strategy(options, strategy.entry)
                folder.prepare(spec, config, side.asked or spec)
            return run.train()


def _check_stop(request: StopRequest) -> None:
    if request.signal:
        raise Interrupted("stopped while evaluating", request.signal)


def check_memory(spec: Spec) -> None:
    """Check that weights and optimizer state fit, as often as every training holds them.

    That is in the framework, as a copy for a checkpoint, and as that checkpoint's bytes. Short
    of them, libraries end the process instead of raising an error. Gradients and activations
    come on top; what of those does not fit fails where it is asked for.

    Raises:
      UsageError: naming the size and the limit, if they can never fit.
    """
    size = np.dtype(spec.training.dtype).itemsize
    values = sum(math.prod(shape) for shape in snapshot_shapes(spec).values())
    needed = _COPIES * values * size
    left, limit = memory_limit()
    if needed > left:
        count = sum(math.prod(each.shape) for each in parameters(spec))
        raise UsageError(
            f"out of memory: {count:,} weights with optimizer state and checkpoint take "
            f"{in_words(needed)}, and {limit} leaves {in_words(left)}; allowed: a smaller "
            "--hidden-size, --embedding-size, --num-layers, --vocabulary-size or --batch-size, "
            "fewer --replicas, or more memory"
        )


def memory_limit() -> tuple[int, str]:
    """Return how many bytes this process may still ask for at most, and what sets that limit.

    Only `ulimit -v` is about this process alone; of the others all of it counts as free.
    """
    limits = []
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        limits.append((max(0, allowed - psutil.Process().memory_info().vms), "ulimit -v"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append((int(Path("/sys/fs/cgroup", name).read_text()), "the control group"))
        except (OSError, ValueError):  # none, or "max"
            continue
    machine = psutil.virtual_memory().total + psutil.swap_memory().total
    return min([*limits, (machine, "the machine")])
