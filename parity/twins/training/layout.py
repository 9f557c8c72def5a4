"""The layout of a run on the machine: how many replicas, and the threads of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import UsageError
from parity.base.files import CONFIG
from parity.base.machine import usable_cores
from parity.base.text import counted
from parity.twins.cli.config import values_of_run
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.gpus import gpu_count
from parity.twins.spec.replicas import split_rows
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.text_source import TextSource

# Of all layouts that keep two cores busy, one replica per core was the fastest
# (docs/performance.md). With more replicas each has fewer rows, which makes its matrix products
# slower. More than 8 were not measured.
_MOST_REPLICAS = 8
_SPLITS = ("train", "valid", "test")


class Layout(NamedTuple):
    """How a run uses the machine.

    Attributes:
      replicas: the number of replicas that share each batch.
      threads: the number of CPU threads of each replica, or of each of its stages.
    """

    replicas: int
    threads: int


def with_layout(
    options: TrainOptions, entry: StrategyEntry | None, text: TextSource, workers: int
) -> tuple[TrainOptions, str]:
    """Fill in the number of replicas, and the threads of each, where options leave them open.

    Args:
      options: the command line, with the settings of the strategy.
      entry: the strategy; None if a run to resume need not keep its layout.
      text: the text, of which the replicas share each batch.
      workers: the number of processes that train.

    Returns:
      The options, and what to say about the layout: empty if they have said it all.
    """
    smallest = smallest_batch(text)
    found = None if entry is None else layout_of_run(options, entry, smallest)
    layout, why = found or (choose_layout(options, smallest, workers), "")
    is_given = layout == (options.replicas, options.threads)
    filled = replace(options, replicas=layout.replicas, threads=layout.threads)
    return filled, "" if is_given else _in_words(layout, why)


def choose_layout(options: TrainOptions, smallest_batch: int, processes: int = 1) -> Layout:
    """Choose replicas and threads where the options leave them open.

    There is one replica per core, or per GPU, at most 8. A replica whose layers are divided
    into stages, which compute at the same time, needs a core, or a GPU, for each of them. In
    several processes there is one replica in each. Replicas and stages have as many threads as
    their share of the cores.

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
        devices = cores if options.device == "cpu" else gpu_count()
        replicas = max(1, min(devices // stages, _MOST_REPLICAS, smallest_batch))
    return Layout(replicas, options.threads or max(1, cores // (replicas * stages)))


def _in_words(layout: Layout, why: str) -> str:
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
