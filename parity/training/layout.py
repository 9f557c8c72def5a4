"""What is chosen for the machine where the user has not: replicas, and threads of each."""

from typing import NamedTuple

from parity.base.cores import usable_cores
from parity.cli.options import TrainOptions

# A replica a core is what was fastest of all that fill two cores (docs/performance.md); with
# more, each one's rows become so few that its products slow down. Not measured beyond.
_MOST_REPLICAS = 8


class Layout(NamedTuple):
    """How a run uses the machine.

    Attributes:
      replicas: that share each batch.
      threads: CPU threads of each replica.
    """

    replicas: int
    threads: int


def choose_layout(options: TrainOptions, smallest_batch: int) -> Layout:
    """Choose replicas and threads where the options leave them open.

    On processors a replica a core, at most 8; on GPUs two replicas. Each has as many threads as
    there are cores for it.

    Args:
      smallest_batch: rows of it; no replica is to go without one.
    """
    cores, replicas = usable_cores(), options.replicas
    if replicas is None:
        replicas = min(cores, _MOST_REPLICAS) if options.device == "cpu" else 2
        replicas = max(1, min(replicas, smallest_batch))
    return Layout(replicas, options.threads or max(1, cores // replicas))


def layout_text(layout: Layout) -> str:
    """Return a layout in words, and how it is changed."""
    return (
        f"{_count(layout.replicas, 'replica')}, {_count(layout.threads, 'thread')} each, on "
        f"{_count(usable_cores(), 'core')}; --replicas and --threads change it"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
