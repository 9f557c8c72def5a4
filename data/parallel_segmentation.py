"""Pairs segmented into tokens by several processes, in order and with little memory.

The processes are loky's: fresh interpreters that import neither the main program nor a
framework. Unlike `fork` that is safe whatever threads and frameworks this process holds, and
unlike `spawn` it does not run a main program a second time.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager

from data.pair_file import PairBlock
from data.segmenters import Segmentation
from parity.base.errors import UsageError

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

    # The first `submit` would start both, and each would let through what is held there.
    tracker_of_loky.ensure_running()
    resource_tracker.ensure_running()
    executor = ProcessPoolExecutor(
        processes, initializer=_start_process, initargs=(os.getpid(), segmentation)
    )
    waiting: deque[tuple[PairBlock, Future[Tokens]]] = deque()
    try:
        for block in blocks:
            with _signals_held():
                future = executor.submit(_segment_here, block.sources, block.targets)
            waiting.append((block, future))
            if len(waiting) > processes:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()
    except BrokenProcessPool as error:
        raise _died(error) from None
    finally:
        executor.shutdown(kill_workers=True)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Handle signals at the end; processes that start within hold Ctrl-C back for good.

    One that has not come to `_start_process` yet would die of it with a traceback. One that
    this process has started, but has not yet sent its work to, would be left behind.
    """
    came: list[int] = []
    with ExitStack() as stack:  # each part of which is undone although a handler may raise
        stack.callback(_raise_signals, came)
        # A mask alone does not hold them back here: another thread may take a signal, and its
        # handler then runs in the main one.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(handler := signal.getsignal(number)):
                    stack.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _: came.append(number))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        yield


def _raise_signals(numbers: Iterable[int]) -> None:
    for number in numbers:
        signal.raise_signal(number)


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
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process if the parent dies: loky's would wait for work for good."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _died(error: BrokenProcessPool) -> UsageError:
    found = re.search(r"exit codes of the workers are \{(.*?)\}", str(error))
    # of several that died at once, each different status once
    statuses = ", ".join(dict.fromkeys(found[1].split(", "))) if found else ""
    status = f" with status {statuses}" if statuses else ""
    return UsageError(
        f"segmenting: a process for it ended{status}: if memory ran out, use fewer processes"
    )
