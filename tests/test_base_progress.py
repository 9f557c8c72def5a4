"""What long work shows: a bar on a terminal, plain lines elsewhere."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from parity.base import progress
from parity.base.progress import ByteProgressBar, Phases, ProgressBar, begin_phase
from parity.twins.training.train_steps import TrainingProgress

ROOT = Path(__file__).resolve().parent.parent


def test_plain_lines_say_how_much_is_left(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 20.0, 40.0, 40.0, 40.0, 60.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 30.0)
    with ProgressBar("timing", 6, "run", done=1) as counter:
        counter.update()
        counter.update("fast")
        counter.update("fast")  # 3 more in 40 s: as long for the 2 that are left
    assert capsys.readouterr().err == "timing: run 4 of 6, fast, 27 s left\n"


def test_what_is_quick_says_nothing(capsys):
    with ProgressBar("timing", 2, "run") as counter:
        counter.update()
        counter.update()
    assert capsys.readouterr() == ("", "")


def test_a_training_speaks_at_the_end_of_each_epoch_and_of_the_last_step(capsys):
    with TrainingProgress("paddle", 1, 8, per_epoch=3) as shown:
        for _ in range(7):
            shown.trained(1.0, 100.0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", ")[0] for line in lines] == [
        f"paddle: step {step} of 8" for step in (3, 6, 8)
    ]
    assert [line.endswith(" s left") for line in lines] == [True, True, False]


def test_phases_off_a_terminal_are_lines_and_counters_show_in_them(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.5)
    begin_phase("nothing is shown")  # outside of any display
    with Phases(2):
        begin_phase("starting")
        begin_phase("comparing")
        with ProgressBar("steps", 4, "step") as counter:
            counter.update("fast")
            time.sleep(1.6)  # longer than the thread sleeps
    with ProgressBar("steps", 1, "step") as counter:
        counter.update("alone", now=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "1 of 2, starting; 0 s so far",
        "2 of 2, comparing; 0 s so far",
        "2 of 2, comparing: step 1 of 4, fast; 1 s so far",
        "steps: step 1 of 1, alone",
    ]


def test_bytes_are_told_as_a_share(monkeypatch, capsys):
    clock = iter([0.0, 31.0, 31.0, 32.0, 33.0, 64.0, 64.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with ByteProgressBar("encoding", 4000) as counter:
        counter.add(1000)
        counter.add(500)
        counter.add(500)
        counter.add(1500)
    assert capsys.readouterr().err == (
        "encoding: 25% of 4,000 bytes, 93 s left\nencoding: 88% of 4,000 bytes, 9 s left\n"
    )


def on_a_terminal(code):
    """Return what a program shows on the stderr of a terminal of 80 columns."""
    terminal, other_end = os.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=other_end, check=True)
    os.set_blocking(terminal, False)  # fail rather than wait if nothing was shown
    seen = os.read(terminal, 10_000).decode()
    os.close(other_end)
    os.close(terminal)
    return seen


def test_loss_and_speed_are_whole_on_80_columns():
    seen = on_a_terminal(
        "import time; from parity.twins.training.train_steps import TrainingProgress\n"
        "with TrainingProgress('tensorflow', 1233, 10250, 100) as shown:\n"
        "    time.sleep(0.2); shown.trained(2.0, 12345.0)"
    )
    assert "tensorflow: 1234/10250 <" in seen
    assert "loss 2.0000, perplexity 7.39, 12,345 tokens/s |" in seen
