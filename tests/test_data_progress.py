"""Progress is a bar on a terminal, a line now and then elsewhere, and silent for short work."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

from data import progress as module
from data.progress import Progress

ROOT = Path(__file__).parent.parent


def test_short_work_is_silent(capsys):
    with Progress("encoding", 100) as progress:
        progress.update(100)
    assert capsys.readouterr() == ("", "")


def test_long_work_prints_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    with Progress("encoding", 4000) as progress:
        progress.update(1000)
        monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 1000.0)
        progress.update(1000)
        progress.update(1000)
    assert capsys.readouterr().err == (
        "encoding: 25% of 4,000 bytes\nencoding: 50% of 4,000 bytes\n"
    )


def test_terminal_shows_a_bar():
    code = (
        "import time; from data.progress import Progress\n"
        "with Progress('encoding', 4096) as progress:\n"
        "    progress.update(1024); time.sleep(1.1); progress.update(1024)"
    )
    terminal, other_end = os.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=other_end, check=True)
    os.set_blocking(terminal, False)  # fail rather than wait if nothing was shown
    seen = os.read(terminal, 10_000).decode()
    os.close(other_end)
    os.close(terminal)
    assert "encoding:" in seen
    assert "2.00k/4.00k" in seen
