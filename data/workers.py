"""Text cut into tokens by several processes, in order and with little memory.

Each process is this module run by a fresh interpreter, with JSON lines on its pipes: unlike
`fork` that is safe whatever threads and frameworks this process holds, and unlike `spawn` it
does not import the main program anew.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from data.segment import Segmentation
from parity.base.errors import UsageError

_ROOT = Path(__file__).resolve().parent.parent
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r});"
    " from data.workers import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
)


@dataclass(frozen=True)
class Texts:
    """Questions and answers, one each per place."""

    sources: list[str]
    targets: list[str]


class Workers:
    """Processes that cut pairs into tokens; use it as a context manager.

    Args:
      segmentation: how they do it.
      processes: how many; with 1 it is done in this process.

    Raises:
      UsageError: if there are fewer than one.
    """

    def __init__(self, segmentation: Segmentation, processes: int) -> None:
        if processes < 1:
            raise UsageError(f"processes {processes}: 1 or more is needed")
        self._segmentation = segmentation
        self._workers: list[subprocess.Popen[bytes]] = []
        if processes == 1:
            return
        settings = {
            "description": segmentation.describe(),
            "cache": segmentation.cache and str(segmentation.cache),
        }
        try:
            for _ in range(processes):
                worker = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                self._workers.append(worker)
                _send(worker, settings)
        except BaseException:
            self.close()
            raise

    def segment(self, pieces: Iterable[tuple[Texts, Any]]) -> Iterator[tuple[Texts, Any]]:
        """Yield the tokens of each piece, with spaces between them, in the order given.

        Args:
          pieces: texts, and anything that shall come back beside their tokens. No more are
            taken ahead than there are processes.

        Raises:
          UsageError: if a process ends before its work does.
        """
        if not self._workers:
            for texts, beside in pieces:
                yield segment_texts(self._segmentation, texts), beside
            return
        waiting: deque[tuple[subprocess.Popen[bytes], Any]] = deque()
        idle = deque(self._workers)
        for texts, beside in pieces:
            # a worker is sent nothing before its answer is read: neither waits for the other
            if not idle:
                worker, earlier = waiting.popleft()
                done = _receive(worker)
                idle.append(worker)
            else:
                done = None
            worker = idle.popleft()
            _send(worker, {"sources": texts.sources, "targets": texts.targets})
            waiting.append((worker, beside))
            if done is not None:
                yield done, earlier
        for worker, beside in waiting:
            yield _receive(worker), beside

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):  # of what was not yet sent
                        stream.close()
        self._workers = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def segment_texts(segmentation: Segmentation, texts: Texts) -> Texts:
    """Return the tokens of texts, with spaces between them."""
    done = []
    known: dict[str, dict[str, str]] = {}
    for name, sentences in (
        (segmentation.source_segmenter, texts.sources),
        (segmentation.target_segmenter, texts.targets),
    ):
        segment = segmentation.segmenter(name)
        # in a conversation an answer is the next question
        tokens = known.setdefault(name, {})
        for sentence in sentences:
            if sentence not in tokens:
                tokens[sentence] = " ".join(segment(sentence))
        done.append([tokens[sentence] for sentence in sentences])
    return Texts(*done)


def serve(requests: Any, answers: Any) -> None:
    """Answer requests, a line of JSON each, until they end; the first holds the settings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads this
    settings = json.loads(requests.readline())
    cache = settings["cache"] and Path(settings["cache"])
    segmentation = Segmentation.from_description(settings["description"], cache)
    for line in requests:
        request = json.loads(line)
        done = segment_texts(segmentation, Texts(request["sources"], request["targets"]))
        answers.write(_line({"sources": done.sources, "targets": done.targets}))
        answers.flush()


def _send(worker: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(_line(request))
        worker.stdin.flush()
    except BrokenPipeError:
        raise _ended(worker) from None


def _receive(worker: subprocess.Popen[bytes]) -> Texts:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line.endswith(b"\n"):
        raise _ended(worker)
    done = json.loads(line)
    return Texts(done["sources"], done["targets"])


def _ended(worker: subprocess.Popen[bytes]) -> UsageError:
    worker.kill()  # if only its pipe is gone
    return UsageError(
        f"segmenting: a process for it ended with status {worker.wait()}: if memory ran out,"
        " use fewer processes"
    )


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode() + b"\n"
