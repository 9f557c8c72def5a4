"""Trains each side of a comparison from each seed, and keeps what is finished."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from parity.base.errors import UsageError
from parity.base.files import make_folder, read_file, write_whole
from parity.base.machine import measured_here
from parity.base.progress import ProgressBar
from parity.base.text import verified, with_checksum
from parity.twins.cli.options import ConvergeOptions
from parity.twins.launch.processes import PEERS, ROOT, Process, SideProcess, shared_options
from parity.twins.run.choose_sides import parse_strategies
from parity.twins.spec.asynchronous_schedule import FREE, is_seed
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.strategies import StrategySettings
from parity.twins.trace.side import TrainedSide
from parity.twins.training.checkpoint import newest_first


def whole_sides(options: ConvergeOptions) -> dict[str, TrainedSide]:
    """Return the sides that the options ask for, the peers last, by what tables call them.

    A side is called by its framework, and its strategy if that has several.

    Raises:
      UsageError: for an unknown strategy, or a setting that none of them takes.
    """
    found = {
        f"{framework} {entry.name}" if len(entries) > 1 else framework: TrainedSide(
            framework,
            entry.name,
            options.replicas,
            options.kernels,
            synchronous=entry.traits.synchronous,
            settings=entry.settings(options.settings),
        )
        for framework, entries in parse_strategies(options.strategy, options.settings).items()
        for entry in entries
    }
    return found | {peer: TrainedSide(peer) for peer in options.peers}


# Framework -> a function (flags, log) that starts its trainings, such as `ForkServer.side`.
Starters = Mapping[str, Callable[[list[str], Path], Process]]

_POLL = 0.2  # seconds
_NOTE = "training.json"  # says which training a folder holds, and whether it is finished
_STEP = re.compile(rb"step (\d+) of \d+")  # in the progress that a training prints
_TAIL = 4096  # bytes at the end of a log in which the last progress is looked for
# Rooms of the laboratory that no training imports, a peer's own aside.
_OUTSIDE = ["bench", "compare", "converge", "faults", "peers", "run", "scale", "sweep"]


class Run(NamedTuple):
    """One side trained from one seed.

    Attributes:
      name: what tables and files call the side.
      side: the side.
      seed: the seed.
    """

    name: str
    side: TrainedSide
    seed: int


@dataclass(frozen=True)
class Trainings:
    """The trainings of all sides from all seeds.

    Args:
      spec: the network, its text and its training, with the vocabulary sizes of the text.
      options: the options of the command.
      content_hash: the hash of the text.
      steps: the number of steps of each training.
      starters: starts the trainings of some sides; the others start in a new interpreter.
    """

    spec: Spec
    options: ConvergeOptions
    content_hash: str
    steps: int
    starters: Starters

    def all(self, sides: Mapping[str, TrainedSide]) -> dict[Run, dict[str, Any]]:
        """Train what is not trained yet; return run -> summary, with the entry `reused`.

        Raises:
          UsageError, NumericFailure, SideFailed: if a training fails, with its message. The
            finished trainings stay.
        """
        first = self.spec.training.seed
        seeds = range(first, first + self.options.seeds)
        runs = [Run(name, side, seed) for seed in seeds for name, side in sides.items()]
        found = {run: summary for run in runs if (summary := self._finished(run)) is not None}
        left = [run for run in runs if run not in found]
        total, done = len(left) * self.steps, sum(map(self._begun, left))
        with ProgressBar("converging", total, "step", done) as progress:
            for run in self._train(left, progress):
                found[run] = self._finish(run)
        return {run: found[run] | {"reused": run not in left} for run in runs}

    def _train(self, runs: list[Run], progress: ProgressBar) -> Iterator[Run]:
        """Train some runs, `--jobs` at a time, and yield each when it has ended."""
        waiting, running = list(runs), dict[Run, SideProcess]()
        steps = {run: self._begun(run) for run in runs}
        with ExitStack() as stack:
            while waiting or running:
                while waiting and len(running) < self.options.jobs:
                    run = waiting.pop(0)
                    running[run] = stack.enter_context(self._start(run))
                for run, process in list(running.items()):
                    ended = process.ended()
                    if ended:
                        process.wait()  # raises what went wrong
                        del running[run]
                        yield run
                    reached = self.steps if ended else _last_step(process.log)
                    if reached > steps[run]:
                        if not steps[run] and not ended:  # nothing of another run is left there
                            self._note(run, None)
                        names = ", ".join(f"{each.name} seed {each.seed}" for each in running)
                        progress.update(names, reached - steps[run])
                        steps[run] = reached
                time.sleep(_POLL)

    def _start(self, run: Run) -> SideProcess:
        options = self.options
        folder = self._folder(run)
        make_folder(folder)
        framework, decoding = run.side.framework, {}
        goes_on = self._begun(run) > 0
        for name in ("log", *(() if goes_on else (_NOTE,))):
            (folder / name).unlink(missing_ok=True)
        if NETWORKS[self.spec.network].decodes:
            names = ("user_dictionary", "on_empty", "beam", "length_penalty")
            decoding = {name: getattr(options, name) for name in names}
        of_sides = dict[str, Any]()
        if framework not in PEERS:
            of_sides = {"kernels": options.kernels, "strategy": run.side.strategy}
            of_sides |= run.side.settings.given
        return SideProcess(
            framework,
            self.spec.replace(seed=run.seed),
            folder / "log",
            self.starters.get(framework),
            **shared_options(options),
            out=folder,
            resume="" if goes_on else None,
            overwrite=not goes_on,
            **of_sides,
            **decoding,
        )

    def _finish(self, run: Run) -> dict[str, Any]:
        """Note that a training is finished, and with what; return its summary."""
        summary = json.loads((self._folder(run) / "summary.json").read_text())
        self._note(run, summary)
        return dict(summary)

    def _note(self, run: Run, summary: Mapping[str, Any] | None) -> None:
        """Note which training a folder holds, and its summary if it is finished."""
        noted = {"of": self._key(run), "summary": summary, **measured_here()}
        write_whole(self._folder(run) / _NOTE, with_checksum(noted).encode() + b"\n")

    def _noted(self, run: Run) -> dict[str, Any] | None:
        """Return what was noted of the same training; None without a note."""
        try:
            noted = verified(read_file(self._folder(run) / _NOTE))
            return dict(noted) if noted["of"] == self._key(run) else None
        except (OSError, UsageError, ValueError, KeyError, TypeError):
            return None  # it is damaged: train again

    def _finished(self, run: Run) -> dict[str, Any] | None:
        """Return the summary of an earlier training that was the same; None without one."""
        summary = (self._noted(run) or {}).get("summary")
        return summary if isinstance(summary, dict) else None

    def _begun(self, run: Run) -> int:
        """Return the step of the checkpoint from which a training goes on; 0 if it is new."""
        if run.side.framework in PEERS or self._noted(run) is None:
            return 0
        folder = self._folder(run) / "checkpoints"
        saved = newest_first(folder) if folder.is_dir() else []
        return max((int(path.stem.removeprefix("step-")) for path in saved), default=0)

    def _key(self, run: Run) -> dict[str, Any]:
        """Return everything that decides a training's result."""
        options = self.options
        return {
            "spec": self.spec.replace(seed=run.seed).to_json(),
            "text": self.content_hash,
            "replicas": options.replicas,
            "kernels": options.kernels,
            "strategy": run.side.strategy or None,  # of a peer
            "settings": run.side.settings.given,
            "schedule": _listed_schedule(run.side.settings),
            "device": options.device,
            "beam": options.beam,
            "length_penalty": options.length_penalty,
            "code": code_digest(run.side.framework),
        }

    def _folder(self, run: Run) -> Path:
        # trainings with other settings stay beside each other
        words = [*run.name.split(), *run.side.settings.text.split()]
        name = "-".join(re.sub(r"[^\w.=-]", "_", word) for word in words)
        return self.options.out / "runs" / f"{name}-{run.seed}"


def _listed_schedule(settings: StrategySettings) -> str | None:
    """Return a hash of the file that --schedule names; None if it names none."""
    if settings.schedule in (None, FREE) or is_seed(settings.schedule):
        return None
    try:
        return hashlib.sha256(read_file(Path(settings.schedule))).hexdigest()
    except (OSError, UsageError):
        return None  # the training will say so


def code_files(framework: str) -> list[Path]:
    """Return the files of all code that a framework's sides, or a peer, may import."""
    known = FRAMEWORKS.get(framework)
    own = "parity/twins/peers" if known is None else known.folder
    outside = [ROOT / "parity" / "twins" / room for room in _OUTSIDE]
    shared = [path for room in ("data", "parity") for path in (ROOT / room).rglob("*.py")]
    kept = [path for path in shared if not any(path.is_relative_to(each) for each in outside)]
    return sorted({*kept, *(ROOT / own).rglob("*.py")})


def code_digest(framework: str) -> str:
    """Return a hash of the code that trains a framework's sides, or a peer."""
    digest = hashlib.sha256()
    for path in code_files(framework):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _last_step(log: Path) -> int:
    """Return the last step that a training has printed; 0 if it has printed none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            found = _STEP.findall(file.read())
    except OSError:
        return 0
    return int(found[-1]) if found else 0
