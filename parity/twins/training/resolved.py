"""The options of a run with every default filled in, as its configuration says them."""

from dataclasses import replace

from parity.twins.cli.options import TrainOptions
from parity.twins.processes.hosts import read_hosts
from parity.twins.processes.start import number_of_workers
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.measured_layout import Calibration, layout_of_run
from parity.twins.training.replicas_and_threads import Layout, choose_layout, smallest_batch
from parity.twins.training.text_source import read_text


def resolved(framework: str, spec: Spec, options: TrainOptions) -> TrainOptions:
    """Return the options that a run would have, without starting it.

    Args:
      framework: "paddle" or "tensorflow".
      spec: the network and its training.
      options: the command line.

    Raises:
      UsageError: for a strategy, a setting or a text that a run would refuse as well.
    """
    registry = FRAMEWORKS[framework].strategies
    settings = registry.settings(options.strategy, options.settings)
    registry.check_training(options.strategy, spec.training)
    entry = registry.entry(options.strategy)
    options, workers = replace(options, settings=settings), 1
    if entry.traits.processes:
        hosts = None if options.hosts is None else read_hosts(options.hosts)
        workers = number_of_workers(settings, options.replicas, hosts)
    spec, text = read_text(spec, options)
    smallest = smallest_batch(text)
    if entry.traits.processes:
        return with_layout(options, entry, choose_layout(options, smallest, workers))
    of_run = layout_of_run(options, entry, smallest)
    kept = of_run[0] if of_run else Calibration(framework, entry).kept(spec, text, options)
    return with_layout(options, entry, kept)


def with_layout(
    options: TrainOptions, entry: StrategyEntry, layout: Layout | None
) -> TrainOptions:
    """Return options that name the strategy and the layout of a run, whoever chose them.

    Args:
      options: the options of the run.
      entry: the strategy.
      layout: the layout; None if the run will measure which is the fastest.
    """
    return replace(
        options,
        strategy=entry.name,
        sync=False,  # the strategy's name says it
        replicas=None if layout is None else layout.replicas,
        threads=None if layout is None else layout.threads,
    )
