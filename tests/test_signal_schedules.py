"""Trainings get signals at random moments: none hangs, leaves a process or loses what it saved.

A schedule is drawn for each training: to one process or to all, SIGTERM, SIGINT, SIGHUP or
SIGKILL, or SIGSTOP and later SIGCONT, one to three times, while it starts, trains or saves.
What a schedule has stopped is resumed under the next one, which costs half of what resuming it
untouched would, and stops resumed trainings, too. Whatever reaches its end must have the bits
of a training that nothing has touched; if it trains asynchronously, those of a replay of its
schedule.

`make signals` draws more of them, for all strategies; the seed and the numbers in a failure's
message repeat them.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest
from conftest import FOLDERS, assert_same_end, chosen, flags, processes_in, wait_for

from parity.base.files import UNFINISHED
from parity.twins.launch.fork_server import Forked, ForkServer
from parity.twins.launch.processes import ROOT, interpreter
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.training.checkpoint import newest_checkpoint

COUNT = int(os.environ.get("PARITY_SIGNAL_SCHEDULES", "1"))
SEED = int(os.environ.get("PARITY_SIGNAL_SEED", "1"))
HANGS = 240  # seconds, which no training here takes
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

pytestmark = pytest.mark.thorough


@dataclass
class Strike:
    """Signals to a training.

    Attributes:
      phase: what is waited for: that it has started, has a checkpoint, or is writing one.
      delay: seconds to wait then.
      number: the signal.
      share: which of its processes gets it, as a share of them; None for all.
      pause: seconds until SIGCONT, for SIGSTOP.
    """

    phase: str
    delay: float
    number: signal.Signals
    share: float | None
    pause: float

    def __str__(self) -> str:
        whom = "all" if self.share is None else "one"
        return f"{self.number.name} to {whom} {self.delay:.3f} s after it {self.phase}"


def drawn(draw: random.Random) -> list[Strike]:
    """Draw the strikes of a schedule."""
    strikes = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        phase = draw.choice(("starts", "trains", "saves"))
        number = draw.choice((*STOPS, signal.SIGKILL, signal.SIGSTOP))
        share = None if draw.random() < 0.4 else draw.random()
        delay = {"starts": 4.0, "trains": 1.0, "saves": 0.01}[phase] * draw.random()
        strikes.append(Strike(phase, delay, number, share, 2 * draw.random()))
    return strikes


class Training:
    """A training, whose processes are those that work in its folder.

    Args:
      command: an interpreter, to start one; a fork server to start the training sooner.
      words: the script and its flags.
      folder: the folder, which is new.
    """

    def __init__(self, command: str | ForkServer, words: list[str], folder: Path):
        folder.mkdir()
        self.folder, self.status, self.said = folder, 0, ""
        said = folder / "said"
        self._process: Forked | subprocess.Popen
        if isinstance(command, ForkServer):
            request = {"argv": words, "folder": str(folder), "stderr": str(said)}
            self._process = Forked(command.start(request))
        else:
            with said.open("w") as file:
                self._process = subprocess.Popen(
                    [command, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=file
                )
        wait_for(self.running)

    def running(self) -> list[int]:
        """Return its processes that have not ended."""
        return processes_in(self.folder)

    def kill(self) -> None:
        for each in self.running():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended, and with it all of its processes."""
        hung: list[int] = []

        def end() -> None:
            hung.extend(self.running())
            self.kill()

        timer = Timer(HANGS, end)
        timer.start()
        self.status = self._process.wait()
        self.said = (self.folder / "said").read_text()
        timer.cancel()
        assert not hung, f"hangs: {self.said}"
        try:
            wait_for(lambda: not self.running(), 30)
        finally:
            self.kill()

    def strike(self, strike: Strike, out: Path) -> None:
        """Send the signals of a strike, unless the training ends before."""
        pattern = {"trains": "step-*", "saves": f"{UNFINISHED}*"}.get(strike.phase)
        earlier = set((out / "checkpoints").glob(pattern or "*"))
        while pattern and earlier.issuperset((out / "checkpoints").glob(pattern)):
            if self._process.poll() is not None:
                break
            time.sleep(0.0005)
        time.sleep(strike.delay)
        sent = self.running()
        if strike.share is not None:
            sent = sent[int(strike.share * len(sent)) :][:1]
        for number in (strike.number, signal.SIGCONT):
            for each in sent:
                with suppress(ProcessLookupError):
                    os.kill(each, number)
            if strike.number != signal.SIGSTOP:
                return
            time.sleep(strike.pause)


@pytest.fixture
def place(tmp_path):
    """Return a folder by its only name, which is what /proc says."""
    return tmp_path.resolve()


def trains(framework: str, entry: StrategyEntry, text: Path, cache: Path) -> list[str]:
    """Return the script and the flags of a training that saves often."""
    optimizer = "sgd" if "sgd" in entry.traits.optimizers else "adam"
    given = flags(
        **{"data": text, "cache": cache, "strategy": entry.name, "optimizer": optimizer},
        **{"steps": 30, "checkpoint_every": 3, "time": 1, "batching": "stream"},
        threads=1,
    )
    return [str(ROOT / FOLDERS[framework] / "train.py"), *given]


def has_its_own_way_to_stop(entry: StrategyEntry) -> bool:
    """Return whether a strategy has processes or workers, or the loop of all that have none."""
    default = any(entry.name == each.strategies.default for each in FRAMEWORKS.values())
    return COUNT > 1 or default or bool(entry.traits.processes) or not entry.traits.synchronous


@pytest.mark.parametrize(("framework", "entry"), chosen(has_its_own_way_to_stop))
def test_whatever_signals_come_a_training_ends_and_goes_on_to_the_same_bits(
    trainings, framework, entry, text, cache, place
):
    forks = trainings.server(framework, entry.name)
    words = trains(framework, entry, text, cache)
    synchronous = entry.traits.synchronous
    whole, out = place / "whole", place / "out"

    def train(*more: str, command: str | ForkServer = forks) -> Training:
        shutil.rmtree(place / "works", ignore_errors=True)
        return Training(command, [*words, *more], place / "works")

    def end(*more: str) -> None:
        training = train(*more)
        training.wait()
        assert training.status == 0, training.said

    def resumed() -> list[str]:
        return [f"--out={out}", *(["--resume"] if (out / "run.json").exists() else [])]

    if synchronous:
        end(f"--out={whole}")
    for number in range(COUNT):
        draw = random.Random(f"{SEED} {framework} {entry.name} {number}")
        strikes, anew = drawn(draw), draw.random() < 0.1
        note = f"seed {SEED}, number {number}, {framework} {entry.name}: "
        note += "; ".join(map(str, strikes))
        training = train(
            *resumed(), command=interpreter(framework, entry.name) if anew else forks
        )
        for each in sorted(strikes, key=lambda each: each.phase == "saves"):
            training.strike(each, out)
        training.wait()
        note = f"{note}: status {training.status}: {training.said}"
        print(note, file=sys.stderr)
        numbers = {int(each.number) for each in strikes}
        asked = {sign * n + (sign > 0) * 128 for n in numbers for sign in (1, -1)}
        assert training.status in {0, 4} | asked, note
        # before the first lines of `train.py` an interpreter has only its own words
        early = anew and signal.SIGINT in numbers and "parity/twins" not in training.said
        assert early or "Traceback" not in training.said, note
        notes: list[str] = []
        newest_checkpoint(out / "checkpoints", notes)
        assert notes == [], note
        if training.status and number + 1 < COUNT:
            continue
        if training.status:
            end(*resumed())
        assert not list(out.rglob(f"{UNFINISHED}*")), note
        if not synchronous:
            shutil.rmtree(whole, ignore_errors=True)
            end(f"--out={whole}", f"--schedule={out / 'schedule.jsonl'}")
        assert_same_end(out, whole)
        shutil.rmtree(out)
