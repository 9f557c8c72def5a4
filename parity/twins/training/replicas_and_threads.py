"""Defaults that depend on the machine: the number of replicas, and the threads of each."""

from typing import Any, NamedTuple

from parity.base.errors import UsageError
from parity.base.machine import usable_cores
from parity.base.text import counted
from parity.twins.cli.options import TrainOptions
from parity.twins.spec.replicas import split_rows
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
    stages = stages_of(options)
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
      stages: the stages of each replica; see `stages_of`.
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


def stages_of(options: TrainOptions) -> int:
    """Return how many cores a replica's layers are spread over."""
    return options.settings.stages or 1


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
