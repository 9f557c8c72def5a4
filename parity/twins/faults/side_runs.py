"""Runs one side on one of the small settings, with or without a fault planted in it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.trace.reader import Trace
from parity.twins.cli.options import RunOptions
from parity.twins.compare.verdict import RunVerdict
from parity.twins.faults.fault import Edit, Fault
from parity.twins.faults.small_runs import SETTINGS, write_texts
from parity.twins.launch.fork_server import ForkServer, record
from parity.twins.run.planned_run import PlannedRun
from parity.twins.run.proof import prove
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


@dataclass(frozen=True)
class Planting:
    """A fault to plant, and in what.

    Attributes:
      fault: the fault.
      side: the framework in whose code to plant it.
      dtype: the precision of the run.
      kernels: "fast" or "plain", the kernels of the run.
    """

    fault: Fault
    side: str
    dtype: str
    kernels: str = "fast"

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Return the edits that plant it."""
        return self.fault.edits_for(self.kernels)[self.side]

    @property
    def run(self) -> SmallRun:
        """Return the run to plant it in."""
        evaluates = self.fault.check == "evaluation"
        return SmallRun(self.fault.setting, self.dtype, self.kernels, evaluates)

    @property
    def required(self) -> bool:
        """Return whether it has to be found."""
        return self.dtype in self.fault.dtypes

    @property
    def strategy(self) -> str:
        """Return the strategy that it is planted in."""
        return SETTINGS[self.fault.setting].strategy(self.side)

    @property
    def own_strategy(self) -> str:
        """Return the strategy that it is planted in; empty if it is the side's default."""
        has_own = SETTINGS[self.fault.setting].has_own_strategy(self.side)
        return self.strategy if has_own else ""

    @property
    def name(self) -> str:
        """Return a name for its files."""
        return f"{self.fault.name}-{self.side}-{self.run.name}"


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
        """Train a side and return its trace.

        Args:
          side: the framework.
          name: the name to run it under; the trace is in the folder `trace` of `folder(name)`.
          edits: what to change in the side's source.
          **more: values of further fields of TrainOptions, or others than those used here.

        Raises:
          UsageError, NumericFailure, SideFailed: with the side's message, if training fails.
        """
        steps, evaluate = SETTINGS[run.setting].steps, None if run.evaluates else 0
        values = self._options(side, run, edits) | {"steps": steps, "evaluate": evaluate} | more
        trace = self.folder(name) / "trace"
        return record(self._servers[side], run.spec, trace, edits=edits, **values)

    def prove(
        self, planting: Planting, check: str, after_mismatch: int = 0, seconds: float = 0.0
    ) -> RunVerdict:
        """Let both sides run as `parity run` does, one with a fault.

        Args:
          check: the check of whole runs that is made where the recorded steps match.
          after_mismatch, seconds: how many steps to measure after a mismatch, and how long to
            look for its cause.

        Raises:
          UsageError, NumericFailure, SideFailed: with a side's message, if it fails.
        """
        run, out = planting.run, self.folder(planting.name)
        setting = SETTINGS[run.setting]
        options = RunOptions(
            network=run.spec.network,
            data=self._texts[run.spec.network],
            out=out,
            cache=out / "cache",
            replicas=(setting.replicas,),
            settings=setting.settings,
            kernels=(run.kernels,),
            steps=setting.steps,
            after_mismatch=after_mismatch,
            cause_seconds=seconds,
            dtype=(run.dtype,),
            checks=(check,),
            throughput=check in ("answers", "untraced", "counting"),
        )
        planted = {planting.side: planting.edits}
        outcome = prove(PlannedRun(run.spec, options, self._servers, planted))
        return outcome.verdicts[0]

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
