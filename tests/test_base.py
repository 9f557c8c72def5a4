"""Files, locks, progress, text from outside and memory: what all commands rest on."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from pathlib import Path

import pytest
from conftest import run_python, start

from parity.base import progress
from parity.base.errors import UsageError
from parity.base.files import (
    UNFINISHED,
    make_folder,
    new_folder,
    open_regular,
    read_file,
    remove_unfinished,
    write_whole,
)
from parity.base.locks import LOCK, only_writer
from parity.base.progress import ByteProgressBar, Phases, ProgressBar, begin_phase, say
from parity.base.text import escaped
from parity.twins.launch.huge_pages import with_huge_pages
from parity.twins.launch.processes import ROOT
from parity.twins.training.train_steps import TrainingProgress

# files and folders are written whole or not at all, and leave nothing else behind


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"first")
    write_whole(path, b"second", durable=False)
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == {"file"}
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="folder: cannot be written: "):
        write_whole(tmp_path / "folder", b"third")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_whole(tmp_path / "none" / "file", b"fourth")
    assert names(tmp_path) == {"file", "folder"}


def _umask(folder) -> int:
    (folder / "plain").touch()
    mode = (folder / "plain").stat().st_mode
    (folder / "plain").unlink()
    return 0o666 & ~mode


def test_a_folder_is_made_with_those_above_it_or_named(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert not names(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(UsageError) as caught:
            make_folder(tmp_path / place)
        assert str(caught.value).startswith(f"{tmp_path / place}: cannot be written: ")


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path):
    for name in ("old", "new"):
        (tmp_path / f"{UNFINISHED}{name}").write_bytes(b"half")
    (tmp_path / f"{UNFINISHED}folder").mkdir()
    (tmp_path / "mine").touch()
    yesterday = time.time() - 25 * 3600
    for name in (f"{UNFINISHED}old", f"{UNFINISHED}folder", "mine"):
        os.utime(tmp_path / name, (yesterday, yesterday))
    make_folder(tmp_path)
    assert names(tmp_path) == {f"{UNFINISHED}new", "mine"}


def test_what_a_killed_process_left_of_one_file_is_removed_at_once(tmp_path):
    for name in ("step-1", "other"):
        child = os.fork()
        if child == 0:
            os.fsync = lambda descriptor: os._exit(9)  # as if killed when nearly done
            write_whole(tmp_path / name, b"half")
        os.waitpid(child, 0)
    assert len(names(tmp_path)) == 2
    remove_unfinished(tmp_path, "step-?")
    (left,) = names(tmp_path)
    assert left.startswith(f"{UNFINISHED}other.")
    write_whole(tmp_path / ("n" * 250), b"a long name")


def test_a_folder_that_is_only_read_need_not_be_writable():
    folder = Path("/proc")  # where nobody can create a file, not even root
    make_folder(folder, read_only=True)
    with pytest.raises(UsageError, match=r"^/proc: cannot be written: "):
        make_folder(folder)


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path):
    with new_folder(tmp_path / "whole") as temporary:
        (temporary / "file").write_bytes(b"first")
        assert not (tmp_path / "whole").exists()
    with pytest.raises(UsageError), new_folder(tmp_path / "half") as temporary:
        (temporary / "none" / "file").read_bytes()
    with new_folder(tmp_path / "whole") as temporary:  # the first to finish wins
        (temporary / "file").write_bytes(b"second")
    assert names(tmp_path) == {"whole"}
    assert (tmp_path / "whole" / "file").read_bytes() == b"first"


def test_only_a_regular_file_is_read(tmp_path):
    """At once: a pipe that nobody writes to, and a device without an end, are no files."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    assert read_file(Path(os.devnull)) == b""
    for path, most, said in (
        (tmp_path / "pipe", 9, "pipe: is a pipe; allowed: a file"),
        (Path("/dev/zero"), 9, "/dev/zero: is a device; allowed: a file"),
        (tmp_path / "file", 4, "file: is larger than 4 bytes; allowed: "),
    ):
        with pytest.raises(UsageError, match=said):
            read_file(path, most)
    for path in (tmp_path, tmp_path / "none", tmp_path / ("n" * 256)):
        with pytest.raises(OSError, match=r"Is a directory|No such file|File name too long"):
            read_file(path)


def test_whatever_goes_wrong_while_a_file_is_read_names_the_file(tmp_path, monkeypatch):
    """The memory of a process is a file of which no process has the beginning."""
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read_file(Path("/proc/self/mem"))
    with open_regular(Path("/proc/self/mem")) as file:
        for read in (file.read, file.readline, lambda: file.read(9)):
            with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
                read()
    os.mkfifo(tmp_path / "log")  # as the kernel's own, which says that it is a file
    monkeypatch.setattr("parity.base.files.stat.S_ISREG", lambda mode: True)
    writer = os.open(tmp_path / "log", os.O_RDWR)
    for content in (b"", b"x" * 9):
        os.write(writer, content)
        with pytest.raises(UsageError, match="log: has no end, and nothing to read now"):
            read_file(tmp_path / "log")
    os.close(writer)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/dev/null", "device"),
        ("/dev/stdout", "device"),
        ("link", "device"),
        ("pipe", "pipe"),
        ("socket", "socket"),
    ],
)
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, monkeypatch, name, kind):
    """Root could replace a device; who reads from a pipe would wait for ever."""
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("replaced"))
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 characters
    Path("link").symlink_to(os.devnull)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket")
    with pytest.raises(UsageError, match=f"{name}: is a {kind}; allowed: a file"):
        write_whole(tmp_path / name, b"x")
    assert names(tmp_path) == {"link", "pipe", "socket"}


# one process at a time writes to a folder; the kernel lets the next one in


# Writes to a folder until its standard input ends. {} is done meanwhile.
HOLD = """
import os, sys
from pathlib import Path
from parity.base.locks import only_writer

with only_writer(Path(sys.argv[1])):
    {}
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Return a function that starts a process that holds a folder."""
    started = []

    def hold(folder, doing="pass"):
        pipes = {"stdin": subprocess.PIPE, "stderr": None}
        words = ["-c", HOLD.format(doing), folder]
        process = start(words, start_new_session=True, **pipes)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield hold
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_second_process_is_told_who_writes_to_the_folder(holder, tmp_path):
    folder = tmp_path / "out"
    first = holder(folder)
    with pytest.raises(UsageError) as caught, only_writer(folder):
        pass
    assert str(caught.value) == (
        f"{folder}: process {first.pid} on {socket.gethostname()} is writing to it; allowed: "
        "another --out, or to wait until that process ends"
    )
    first.communicate("", timeout=30)
    assert first.returncode == 0
    assert not folder.exists()  # it was made for the lock, and nothing was written to it
    with only_writer(folder):
        (folder / "mine").touch()
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_a_killed_process_holds_nothing_though_its_child_lives(holder, tmp_path):
    first = holder(tmp_path, "if os.fork() == 0: os.close(1); sys.stdin.read(); os._exit(0)")
    first.kill()
    first.wait(30)
    assert (tmp_path / LOCK).read_text().startswith(f"{first.pid} ")
    with only_writer(tmp_path):
        assert re.match(rf"{os.getpid()} ", (tmp_path / LOCK).read_text())
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_leaves_the_context_lets_nobody_in(holder, tmp_path):
    first = holder(tmp_path, "child = os.fork(); child or sys.exit(); os.waitpid(child, 0)")
    with pytest.raises(UsageError, match=f"process {first.pid} on "), only_writer(tmp_path):
        pass


# what long work shows: a bar on a terminal, plain lines elsewhere


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
        with ByteProgressBar("encoding", 4) as counter:
            counter.update("fast")
            time.sleep(1.6)  # longer than the thread sleeps
    with ProgressBar("steps", 1, "step") as counter:
        counter.update("alone", now=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "1 of 2, starting; 0 s so far",
        "2 of 2, comparing; 0 s so far",
        "2 of 2, comparing: encoding, 25% of 4 bytes, fast; 1 s so far",
        "steps: step 1 of 1, alone",
    ]


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


def test_a_long_line_is_wrapped_on_a_terminal_alone(capsys):
    line = " ".join(["step-30: loss"] * 12)
    seen = on_a_terminal(f"from parity.base.progress import say; say({line!r})").splitlines()
    assert max(map(len, seen)) <= 80
    assert " ".join(each.strip() for each in seen) == line
    say(line)
    assert capsys.readouterr().err == f"{line}\n"


# text from outside is shown, and no terminal obeys it


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\tb\r\nc\x7f\x9b", "a\\tb\\r\\nc\\x7f\\x9b"),
        ("name\udc80", "name\\udc80"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("你好 émile 🙂\u3000", "你好 émile 🙂\u3000"),
    ],
)
def test_control_characters_are_escaped_and_letters_are_not(text, shown):
    assert escaped(text) == shown
    assert str(UsageError(text)) == shown
    assert escaped(shown) == shown


def test_every_control_character_is_escaped():
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in ("Cc", "Cs"):
            shown = escaped(chr(code))
            assert shown.isascii()
            assert shown.isprintable()


def test_remarks_are_escaped(capsys):
    say("/tmp/\x1b[2Jname: skipped")
    assert capsys.readouterr().err == "/tmp/\\x1b[2Jname: skipped\n"


# how a process gets its memory: huge pages are asked for once, or left where settled


TUNABLES = "GLIBC_TUNABLES"
SAY = (
    "import json, os, sys; sys.path.insert(0, {root!r}); "
    "from parity.twins.launch.huge_pages import use_huge_pages; "
    "print(os.getpid(), flush=True); "
    "use_huge_pages(); print(json.dumps([os.environ[{name!r}], sys.argv[1:]]))"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_huge_pages_are_asked_for_unless_that_is_settled(before, after):
    given = {"PATH": "/bin"} | ({} if before is None else {TUNABLES: before})
    assert with_huge_pages(given) == {"PATH": "/bin", TUNABLES: after}
    assert given.get(TUNABLES) == before


def test_a_program_begins_anew_but_once_with_its_arguments():
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    code = SAY.format(root=str(ROOT), name=TUNABLES)
    done = run_python("-I", "-c", code, "a b", "--flag", cwd=None, env=environment, check=True)
    first, second, said = done.stdout.splitlines()
    assert first == second, "it is the same process"
    assert json.loads(said) == ["glibc.malloc.hugetlb=1", ["a b", "--flag"]]


def test_ctrl_c_while_python_forks_is_not_lost():
    """What Python calls after a fork swallows exceptions, as that of a signal is one there."""
    code = (
        "import os, signal, time; from parity.base.process import fork\n"
        "def ctrl_c(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)\n"
        "os.register_at_fork(after_in_parent=ctrl_c)\n"
        "try:\n    child = fork()\n    if child == 0: os._exit(0)\n"
        "except KeyboardInterrupt: print('it came')"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("it came\n", "")
