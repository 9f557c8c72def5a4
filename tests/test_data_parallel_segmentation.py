"""Blocks of pairs are segmented in order by processes that end with the work."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from conftest import run_python, start

from data.pair_file import PairBlock
from data.parallel_segmentation import segment_blocks
from data.segmenters import Segmentation
from parity.base.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
SEGMENTATION = Segmentation("english", "spaces")

# A program without `if __name__ == "__main__"`, which holds a thread and segments text.
PROGRAM = """
import sys, threading, time
sys.path.insert(0, {root!r})
print("started", flush=True)
from data.pair_file import PairBlock
from data.segmenters import Segmentation
from data.parallel_segmentation import segment_blocks
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
blocks = (PairBlock([f"A{{i}} b"], ["c"], [(i, i)]) for i in range({count}))
for block, tokens in segment_blocks(blocks, Segmentation("english", "spaces"), 2):
    if block.places[0][0] < 10:
        print(*tokens, flush=True)
"""


def some_blocks(count):
    return [
        PairBlock([f"A{i} b", "c"], ["d", f"e {i}"], [(i, 0), (i, 1)]) for i in range(count)
    ]


def workers_of(process):
    """Return the processes that segment for one: not those that only watch."""
    return [
        each
        for each in psutil.Process(process).children(recursive=True)
        if any("popen_loky" in word for word in each.cmdline())
    ]


def program(tmp_path, count):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(root=str(ROOT), count=count))
    return path


@pytest.mark.parametrize("processes", [1, 3])
def test_the_order_is_kept_and_little_read_ahead(processes):
    blocks, taken = some_blocks(100), []
    reading = (taken.append(block) or block for block in blocks)
    with closing(segment_blocks(reading, SEGMENTATION, processes)) as segmented:
        for i, found in enumerate(segmented):
            assert found == (blocks[i], ([f"a{i} b", "c"], ["d", f"e {i}"]))
            assert len(taken) <= i + 4 * processes
    assert i == 99


def test_a_process_that_dies_is_named():
    with closing(segment_blocks(iter(some_blocks(1000)), SEGMENTATION, 2)) as segmented:
        next(segmented)
        for worker in workers_of(os.getpid()):
            worker.kill()
        with pytest.raises(UsageError) as caught:
            list(segmented)
    assert str(caught.value) == (
        "segmenting: a process for it was killed: if memory ran out, use fewer processes"
    )


def test_the_processes_end_with_the_work():
    segmented = segment_blocks(iter(some_blocks(100)), SEGMENTATION, 2)
    next(segmented)
    assert workers_of(os.getpid())
    segmented.close()
    assert not workers_of(os.getpid())


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_segmenting_is_the_users(processes, tmp_path):
    """A worker reports it as this process would: here a cache that cannot be written."""
    (tmp_path / "cache").touch()
    segmentation = Segmentation(cache=tmp_path / "cache")
    with pytest.raises(UsageError, match=r"cache: cannot be written: a file has this name"):
        list(segment_blocks(iter(some_blocks(1)), segmentation, processes))


# Ctrl-C as soon as the interpreter of a process starts, before it can be ignored there.
EARLY = """
import os, signal, sys
if any("popen_loky" in word for word in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_process_that_is_starting_does_not_take_ctrl_c(tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(EARLY)
    done = run_python(program(tmp_path, 2), env=os.environ | {"PYTHONPATH": str(folder)})
    assert done.stderr == ""
    assert done.stdout == "started\n['a0 b'] ['c']\n['a1 b'] ['c']\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_program(number, tmp_path):
    """Ctrl-C reaches all processes of a terminal; a kill reaches the program alone."""
    with start([program(tmp_path, 10**9)], start_new_session=True) as process:
        for _ in range(2):
            process.stdout.readline()
        workers = workers_of(process.pid)
        assert workers
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.kill()
        said = process.stderr.read() if number == signal.SIGINT else ""
    deadline = time.monotonic() + 60
    while any(worker.is_running() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert said.count("Traceback") == (number == signal.SIGINT), said  # the program's own
