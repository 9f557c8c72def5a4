"""Defaults that depend on the machine: the number of replicas, and the threads of each."""

from typing import Any, NamedTuple

from parity.base.cores import usable_cores
from parity.base.errors import UsageError
from parity.cli.options import TrainOptions
from parity.spec.replicas import split_rows
from parity.training.training_text import TrainingText

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


def layout_text(layout: Layout) -> str:
    """Return a layout in words, and the flags that change it."""
    return (
        f"{_count(layout.replicas, 'replica')}, {_count(layout.threads, 'thread')} each, on "
        f"{_count(usable_cores(), 'core')}; --replicas and --threads change it"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def smallest_batch(text: Any) -> int:
    """Return the number of rows in the smallest batch of any split of a TrainingText."""
    return min(int(getattr(text, split).smallest_batch) for split in _SPLITS)


def check_rows(text: TrainingText, replicas: int) -> None:
    """Check, before anything is built, that every batch has a row for each replica.

    Raises:
      UsageError: if a batch has fewer rows than there are replicas.
    """
    for split in _SPLITS:
        try:
            split_rows(getattr(text, split).smallest_batch, replicas)
        except UsageError as error:
            raise UsageError(f"{split}: {error}") from None
