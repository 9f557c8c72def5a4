"""Pairs segmented into tokens by several processes, in order and with little memory.

The processes are loky's: fresh interpreters that import neither the main program nor a
framework. Unlike `fork` that is safe whatever threads and frameworks this process holds, and
unlike `spawn` it does not run a main program a second time.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

from data.pair_file import PairBlock
from data.segmenters import Segmentation
from parity.base.errors import UsageError
from parity.base.process import die_with_parent

Tokens = tuple[list[str], list[str]]  # of questions and answers, joined by spaces

_segmentation: Segmentation  # set in the processes of an executor


def segment_blocks(
    blocks: Iterable[PairBlock], segmentation: Segmentation, processes: int
) -> Generator[tuple[PairBlock, Tokens], None, None]:
    """Yield each block with its tokens, in the order given.

    Close the generator if it is not exhausted: that ends the processes.

    Args:
      blocks: read ahead by no more than the number of processes.
      segmentation: how text is segmented.
      processes: how many; with 1 the work is done in this process.

    Raises:
      UsageError: if there are fewer than one, or one dies.
    """
    if processes < 1:
        raise UsageError(f"processes {processes}: 1 or more is needed")
    if processes == 1:
        for block in blocks:
            yield block, _segment(segmentation, block.sources, block.targets)
        return
    # only here: most runs find their text in the cache
    from multiprocessing import resource_tracker

    from loky import ProcessPoolExecutor
    from loky.backend import resource_tracker as tracker_of_loky

    # The first `submit` would start both, and each would let through what is held back there.
    tracker_of_loky.ensure_running()
    resource_tracker.ensure_running()
    executor = ProcessPoolExecutor(
        processes, initializer=_start_process, initargs=(os.getpid(), segmentation)
    )
    waiting: deque[tuple[PairBlock, Future[Tokens]]] = deque()
    try:
        for block in blocks:
            # a process that starts now holds Ctrl-C back until it can ignore it
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                future = executor.submit(_segment_here, block.sources, block.targets)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            waiting.append((block, future))
            if len(waiting) > processes:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()
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
