"""Pairs segmented into tokens by several processes, in order and with little memory.

The processes are loky's: fresh interpreters that import neither the main program nor a
framework. Unlike `fork` that is safe whatever threads and frameworks this process holds, and
unlike `spawn` it does not run a main program a second time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from data.pair_file import PairBlock
from data.segmenters import Segmentation
from parity.base.errors import UsageError
from parity.base.machine import usable_cores
from parity.base.process import die_with_parent

Tokens = tuple[list[str], list[str]]  # of questions and answers, joined by spaces

_BLOCKS_AHEAD = 4  # per process
_BYTES_PER_PROCESS = 1 << 18  # with less text a process takes longer to start than it saves

_segmentation: Segmentation  # set in the processes of an executor


def processes_for(size: int) -> int:
    """Return how many processes to segment a text of this many bytes with."""
    return min(usable_cores(), 1 + size // _BYTES_PER_PROCESS)


def segment_blocks(
    blocks: Iterable[PairBlock], segmentation: Segmentation, processes: int
) -> Generator[tuple[PairBlock, Tokens], None, None]:
    """Yield each block with its tokens, in the order given.

    Close the generator if it is not exhausted: that ends the processes.

    Args:
      blocks: a few per process are read ahead.
      segmentation: how text is segmented.
      processes: how many; with 1 the work is done in this process.

    Raises:
      UsageError: if one dies.
    """
    if processes == 1:
        for block in blocks:
            yield block, _segment(segmentation, block.sources, block.targets)
        return
    _segment(segmentation, [""], [""])  # puts jieba's dictionary into the cache for all of them
    # only here: most runs find their text in the cache
    from multiprocessing import resource_tracker

    from loky import ProcessPoolExecutor
    from loky.backend import resource_tracker as tracker_of_loky

    # The first `submit` would start both, and each lets through what is held back below.
    tracker_of_loky.ensure_running()
    resource_tracker.ensure_running()
    executor = ProcessPoolExecutor(
        processes, initializer=_start_process, initargs=(os.getpid(), segmentation)
    )
    remaining = iter(blocks)
    try:
        while some := list(islice(remaining, _BLOCKS_AHEAD * processes)):
            # a process that starts now holds Ctrl-C back until it can ignore it
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [executor.submit(_segment_here, b.sources, b.targets) for b in some]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for block, future in zip(some, futures, strict=True):
                yield block, future.result()
    except BrokenProcessPool:
        raise UsageError(
            "segmenting: a process for it was killed: if memory ran out, use fewer processes"
        ) from None
    finally:
        executor.shutdown(kill_workers=True)


def _segment(
    segmentation: Segmentation, sources: Sequence[str], targets: Sequence[str]
) -> Tokens:
    known: dict[str, dict[str, str]] = {}

    def tokens_of(sentences: Sequence[str], segmenter: str) -> list[str]:
        segment = segmentation.segmenter(segmenter)
        # in a conversation an answer is the next question
        tokens = known.setdefault(segmenter, {})
        for sentence in sentences:
            if sentence not in tokens:
                tokens[sentence] = " ".join(segment(sentence))
        return [tokens[sentence] for sentence in sentences]

    return (
        tokens_of(sources, segmentation.source_segmenter),
        tokens_of(targets, segmentation.target_segmenter),
    )


def _segment_here(sources: Sequence[str], targets: Sequence[str]) -> Tokens:
    """Segment in a process of the executor."""
    return _segment(_segmentation, sources, targets)


def _start_process(parent: int, segmentation: Segmentation) -> None:
    global _segmentation  # sent once, not with each block: it may hold a large dictionary
    _segmentation = segmentation
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    die_with_parent(parent)  # or it would wait for work for good
