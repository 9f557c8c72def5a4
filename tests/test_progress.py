"""What long work shows: a bar on a terminal, plain lines elsewhere."""

import io
import sys
import time

import pytest

from parity.base import progress
from parity.base.progress import Counter, Progress


def test_plain_lines_say_how_much_is_left(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 20.0, 40.0, 40.0, 40.0, 60.0, 60.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 30.0)
    with Counter("timing", 6, "run", done=1) as counter:
        counter.update()
        counter.update("fast")
        counter.update("fast")  # 3 more in 40 s: as long for the 2 that are left
    assert capsys.readouterr().err == "timing: run 4 of 6, fast, 27 s left\n"


def test_what_is_quick_says_nothing(capsys):
    with Progress("paddle", 0, 2) as shown:
        shown.trained(1.0, 100.0)
        shown.trained(1.0, 100.0)
    assert capsys.readouterr() == ("", "")


def test_training_says_loss_and_speed(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with Progress("paddle", 0, 2) as shown:
        shown.trained(2.0, 12_345.0)
    said = capsys.readouterr().err
    assert said.startswith(
        "paddle: step 1 of 2, loss 2.0000, perplexity 7.39, 12,345 tokens/s,"
    )


@pytest.mark.parametrize("text", ["", "false alarms 0"])
def test_a_terminal_gets_a_bar(text, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with Counter("sweeping", 3, "run") as counter:
        counter.update(text)
        time.sleep(0.2)  # a bar is drawn ten times a second
        counter.update(text)
    shown = sys.stderr.getvalue()
    assert "sweeping" in shown
    assert "/3" in shown
    assert text in shown
