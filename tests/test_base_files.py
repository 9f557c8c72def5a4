"""Files and folders are written whole or not at all, and leave nothing else behind."""

import os
import socket
import time
from pathlib import Path

import pytest

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
