"""More memory is asked for than there is: one line with the size, the same on both sides."""

import subprocess
import sys

import click
import numpy as np
import pytest
from conftest import FOLDERS, FRAMEWORKS, assert_one_line, run_python

from parity.base import machine
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.twins.launch.processes import ROOT
from parity.twins.spec.spec import preset
from parity.twins.training.start import check_memory

GIB = 2**30


def limited(folder, size, gigabytes, out):
    """Train with an address space of so many GiB."""
    words = [sys.executable, f"{folder}/train.py", f"--hidden-size={size}", "--steps=2"]
    shell = f'ulimit -v {int(gigabytes * 2**20)}; exec "$@"'
    return subprocess.run(
        ["bash", "-c", shell, "bash", *words, "--replicas=1", f"--out={out}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "names", [FRAMEWORKS[:1], pytest.param(FRAMEWORKS, marks=pytest.mark.thorough)]
)
def test_a_network_that_cannot_fit_is_refused_alike(tmp_path, names):
    lines = set()
    for name in names:
        done = limited(FOLDERS[name], 6000, 10, tmp_path / name)
        line = assert_one_line(done.returncode, done.stderr)
        assert "checkpoint take 14.5 GiB, and ulimit -v leaves " in line
        assert line.endswith("fewer --replicas, or more memory")
        lines.add(line.split(" leaves ")[0])
        assert not (tmp_path / name).exists()
    assert len(lines) == 1, "the same on both sides"


def test_a_framework_that_has_no_room_is_one_line(tmp_path):
    for name, folder in FOLDERS.items():
        done = limited(folder, 8, 0.65, tmp_path / name)
        line = assert_one_line(done.returncode, done.stderr)
        assert line.startswith(f"error: {name} cannot be imported (")


def test_the_limit_is_what_the_weights_and_two_copies_take(monkeypatch):
    spec = preset("language-model", "tiny").replace(dtype="float64")
    small = {}
    for limit in range(10**6, 10**8, 10**6):
        monkeypatch.setattr(
            "parity.twins.training.start.memory_limit", lambda at=limit: (at, "a test")
        )
        try:
            check_memory(spec)
        except UsageError as error:
            small[limit] = str(error)
        else:
            break
    assert "a test leaves" in small[limit - 10**6]
    from parity.twins.spec.initial import initial_snapshot

    held = 3 * sum(array.nbytes for array in initial_snapshot(spec).values())
    assert limit - 10**6 < held <= limit


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ("Unable to allocate 107. GiB for an array with shape (60000, 240000)", 107 * GIB),
        ("Unable to allocate 6.00 bytes", 6),
        ("(ResourceExhausted) Fail to alloc memory of 57600000000 size, error", 57600000000),
        (
            "Out of memory error on GPU 0. Cannot allocate 1.500000GB memory on GPU 0",
            3 * GIB // 2,
        ),
        ("OOM when allocating tensor with shape[1024,512] and type double on /job", 2**22),
        ("std::bad_alloc", None),
    ],
)
def test_the_size_is_read_from_what_the_libraries_say(said, size):
    assert machine.asked_for(said) == size


@pytest.mark.parametrize(
    "kind", [MemoryError, type("ResourceExhaustedError", (Exception,), {})]
)
def test_an_allocation_that_fails_is_one_line_and_bad_use(capsys, kind):
    @click.command()
    def command():
        raise kind(
            "(ResourceExhausted) Fail to alloc memory of 57600000000 size, error code 12"
        )

    line = assert_one_line(main(command, []), capsys.readouterr().err)
    assert line.startswith(
        "error: out of memory: there was no room for 53.6 GiB more; allowed: "
    )


@pytest.mark.thorough
def test_what_the_libraries_raise_is_known_for_what_it_is():
    """By the real allocators of NumPy and of both frameworks."""
    with pytest.raises(MemoryError) as caught:
        np.empty((2**30, 2**20))
    assert "8,388,608.0 GiB" in machine.out_of_memory(caught.value)
    programs = {
        "paddle": "import paddle; make = lambda: paddle.zeros([2**24, 2**22])",
        "tensorflow": "import tensorflow as tf; make = lambda: tf.zeros([2**24, 2**22])",
    }
    for program in programs.values():
        code = (
            f"{program}\nfrom parity.base.machine import out_of_memory\n"
            "try:\n  make()\nexcept Exception as error:\n  print(out_of_memory(error))"
        )
        done = run_python("-c", code)
        assert "no room for 262,144.0 GiB more" in done.stdout, done.stderr[-2000:]


def test_a_checkpoint_that_has_no_room_is_an_error_and_no_abort(tmp_path):
    """The library that makes its bytes ends the process where it gets no memory."""
    code = """
import resource, sys
import numpy as np
from pathlib import Path
from parity.base import machine
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.spec import preset
from parity.twins.training.checkpoint import Checkpoint, save_checkpoint
spec = preset("language-model", "tiny").replace(hidden_size=700)
checkpoint = Checkpoint(spec, 1, initial_snapshot(spec), None, "a" * 64, "paddle")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
try:
    save_checkpoint(Path(sys.argv[1]), checkpoint)
except MemoryError as error:
    print(machine.out_of_memory(error))
"""
    done = run_python("-c", code, tmp_path)
    assert "out of memory: there was no room for " in done.stdout, done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_has_no_room_is_an_error_in_one_line():
    code = """
import resource, threading
from parity.base import machine
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, used + 2**22))
try:
    threading.Thread(target=print).start()
except Exception as error:
    print(machine.out_of_memory(error), machine.out_of_memory(RuntimeError("std::exception")))
"""
    done = run_python("-c", code)
    assert done.stdout.startswith("no room for another thread or process (can't "), done.stderr
    assert "out of memory: there was no room; allowed: " in done.stdout
    assert machine.out_of_memory(RuntimeError("std::exception")) is None


def test_other_errors_are_no_lack_of_memory():
    assert machine.out_of_memory(ValueError("Unable to allocate 6 GiB")) is None
