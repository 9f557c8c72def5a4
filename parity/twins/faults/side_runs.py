"""Runs one side on one of the small settings, with or without a fault planted in it."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.trace.reader import Trace
from parity.twins.compare.answers import AnswerSettings, SideAnswers, read_answers
from parity.twins.faults.fault import Edit
from parity.twins.faults.small_runs import EVERY, SETTINGS, write_texts
from parity.twins.launch.fork_server import ForkServer, record, run_side
from parity.twins.spec.spec import Spec


@dataclass(frozen=True)
class SmallRun:
    """What a side is to run.

    Attributes:
      setting: the name of the setting; see parity/twins/faults/small_runs.py.
      dtype: the precision.
      kernels: "plain" or "fast".
      evaluates: whether validation and test text are evaluated after the last recorded step.
    """

    setting: str
    dtype: str
    kernels: str = "fast"
    evaluates: bool = False

    @property
    def spec(self) -> Spec:
        """Return the spec that the side is started with."""
        return SETTINGS[self.setting].spec.replace(dtype=self.dtype)

    @property
    def name(self) -> str:
        """Return a name for its files."""
        evaluates = "-evaluated" if self.evaluates else ""
        return f"{self.setting.replace(', ', '-')}-{self.kernels}-{self.dtype}{evaluates}"


class SideRuns:
    """Runs sides, and keeps what they write under the folder of a hunt.

    Args:
      out: the folder of the hunt.
      servers: framework -> its fork server.
    """

    def __init__(self, out: Path, servers: Mapping[str, ForkServer]):
        self._servers, self._out = servers, out.resolve()
        self._texts = write_texts(out / "texts")

    def folder(self, name: str) -> Path:
        """Return the folder for what is run under a name."""
        return self._out / "traces" / name

    def record(
        self, side: str, run: SmallRun, name: str, edits: Sequence[Edit] = (), **more: Any
    ) -> Trace:
        """Train a side and return its trace; checkpoints are in the folder `saved` beside it.

        Args:
          side: the framework.
          name: the name to run it under; the trace is in the folder `trace` of `folder(name)`.
          edits: what to change in the side's source.
          **more: values of further fields of TrainOptions, or others than those used here.

        Raises:
          UsageError, NumericFailure, SideFailed: with the side's message, if training fails.
        """
        folder = self.folder(name)
        given = {
            "out": folder / "saved",
            "overwrite": True,
            "steps": SETTINGS[run.setting].steps,
            # where one is due, all workers wait: a run without them has another schedule
            "checkpoint_every": EVERY if SETTINGS[run.setting].is_synchronous(side) else None,
            "evaluate": None if run.evaluates else 0,
        }
        values = self._options(side, run, edits) | given | more
        return record(self._servers[side], run.spec, folder / "trace", edits=edits, **values)

    def train(
        self, side: str, run: SmallRun, name: str, edits: Sequence[Edit], steps: int
    ) -> tuple[Path, float]:
        """Train a side without a trace; return the folder of its run, and the seconds taken."""
        out, started = self.folder(name), time.monotonic()
        values = self._options(side, run, edits) | {"out": out, "steps": steps}
        run_side(self._servers[side], run.spec, edits=edits, overwrite=True, **values)
        return out, time.monotonic() - started

    def answer(
        self,
        side: str,
        run: SmallRun,
        name: str,
        edits: Sequence[Edit],
        checkpoint: Path,
        search: AnswerSettings,
    ) -> SideAnswers:
        """Let a side answer the test questions from a checkpoint; return what it wrote."""
        out = self.folder(name)
        run_side(
            self._servers[side],
            run.spec,
            edits=edits,
            **self._options(side, run, edits),
            out=out,
            resume=checkpoint,
            evaluate_only=True,
            evaluate=0,
            beam=search.beam,
            length_penalty=search.length_penalty,
            longest=search.flag,
        )
        return read_answers(out)

    def _options(self, side: str, run: SmallRun, edits: Sequence[Edit]) -> dict[str, Any]:
        setting = SETTINGS[run.setting]
        # a side that reads text otherwise must not read what another one has encoded
        cache = "cache"
        if any(edit.file.startswith("data/") for edit in edits):
            cache = f"cache-{hashlib.sha256(repr(edits).encode()).hexdigest()[:12]}"
        return {
            "data": self._texts[setting.spec.network],
            "cache": self._out / cache / side,
            "kernels": run.kernels,
            **setting.options(side),
        }
