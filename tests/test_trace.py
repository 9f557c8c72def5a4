"""Traces: what is written is what is read, and what is not is refused."""

import json
import threading
import time

import numpy as np
import pytest
from conftest import one_line, run_python, start, wait_for
from oracle_side import header, recorded_steps, small_spec, write_trace
from safetensors.numpy import load

from parity.base.errors import UsageError
from parity.base.files import UNFINISHED
from parity.trace.folder import RECORDING, clear_trace, sha256, step_file
from parity.trace.reader import Trace
from parity.trace.writer import Writer
from parity.twins.spec.initial import initial_snapshot
from parity.twins.trace.following import follow, wait_for_trace
from parity.twins.training.checkpoint import Checkpoint, save_checkpoint

SPEC = small_spec()
HEADER = header(SPEC, "paddle")


@pytest.fixture(scope="module")
def steps():
    return recorded_steps(SPEC, 3)


@pytest.fixture
def trace(tmp_path, steps):
    return Trace(write_trace(tmp_path / "trace", HEADER, steps))


def test_a_trace_of_format_6_is_read_and_its_damage_seen(trace, steps):
    """It is the same but for its digests."""
    header = json.loads((trace.folder / "trace.json").read_bytes())
    (trace.folder / "trace.json").write_text(json.dumps({**header, "format": 6}))
    lines = [
        {"step": step, "sha256": {name: sha256(np.asarray(tensors[name])) for name in tensors}}
        for step, tensors in enumerate(steps)
    ]
    (trace.folder / "steps.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    old = Trace(str(trace.folder))
    assert [step for step, _ in old.steps()] == [0, 1, 2]
    path = trace.folder / step_file(2)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UsageError, match=r"tensor '.*' is not what was recorded"):
        old.read(2)


def test_a_step_is_what_safetensors_itself_would_write(tmp_path):
    """Of all types, without elements, without axes, transposed, and aligned."""
    draw = np.random.default_rng(1)
    tensors = {
        f"forward/{kind}": draw.integers(0, 2, (3, 5)).astype(kind)
        for kind in ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
    }
    tensors |= {"forward/é": np.ones((0, 3)), "loss/a": np.float32(3)}
    tensors["forward/f4"] = -tensors["forward/f4"].T
    writer = Writer(tmp_path / "trace", HEADER)
    writer.step(0, tensors)
    content = (tmp_path / "trace" / step_file(0)).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    places = json.loads(content[8:start])
    found = load(content)
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert (start + places[name]["data_offsets"][0]) % array.itemsize == 0


# damage


@pytest.mark.parametrize(
    ("kind", "bits"), [("F8_E4M3", 8), ("F8_E5M2", 8), ("BF16", 16), ("C64", 64)]
)
def test_tensors_of_types_that_no_recording_has_are_refused(trace, kind, bits):
    import ml_dtypes  # noqa: F401  as TensorFlow does: NumPy then has a bfloat16

    path = trace.folder / step_file(1)
    place = {"dtype": kind, "shape": [1], "data_offsets": [0, bits // 8]}
    head = json.dumps({"loss/global": place}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(bits // 8))
    for read in (lambda: trace.read(1), lambda: trace.number(1, "loss/global")):
        with pytest.raises(UsageError) as caught:
            read()
        assert str(path) in one_line(caught)


def test_a_changed_byte_is_refused(trace):
    path = trace.folder / step_file(1)
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for place in np.linspace(start, len(content) - 1, 25).astype(int):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UsageError, match=r"tensor '.*' is not what was recorded"):
            trace.read(1)


def test_a_missing_or_unfinished_step_is_refused(trace):
    with pytest.raises(UsageError, match="step 3 was never finished"):
        trace.read(3)
    (trace.folder / step_file(1)).unlink()
    with pytest.raises(UsageError) as caught:
        trace.read(1)
    assert step_file(1) in one_line(caught)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"",
        b"[]",
        b"3",
        b'{"step": 1}',
        b'{"crc32": {}}',
        b'{"step":1,"crc32":2}',
        b"\xff",
    ],
)
def test_a_bad_line_of_the_index_is_named(trace, line):
    path = trace.folder / "steps.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, lines[2]]) + b"\n")
    for use in (lambda: list(trace.lines()), lambda: trace.read(0)):
        with pytest.raises(UsageError) as caught:
            use()
        assert one_line(caught) == f"{path}, line 2: not a line of a trace's index"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no trace.json here; not a recorded trace"),
        (b"", "trace.json: cannot be read"),
        (b"\xff\xfe", "trace.json: cannot be read"),
        (b"[1]", "trace.json: format is [1]; allowed: 6, 7, 8"),
        (b"{}", "trace.json: format is None; allowed: 6, 7, 8"),
        (b'{"format": 4}', "trace.json: format is 4; allowed: 6, 7, 8"),
        (b'{"format": 6, "framework": "x"}', "trace.json: lacks dtype, run, tolerances"),
    ],
)
def test_what_is_not_a_trace_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Trace(tmp_path)
    assert said in one_line(caught)


# writing


def test_a_step_that_cannot_be_written_leaves_no_line(tmp_path, steps):
    recorder = Writer(tmp_path / "trace", HEADER)
    recorder.step(0, steps[0])
    (tmp_path / "trace" / step_file(1)).mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        recorder.step(1, steps[1])
    recorder.close()
    assert [line["step"] for line in Trace(tmp_path / "trace").lines()] == [0]
    left = {path.name for path in (tmp_path / "trace").iterdir()}
    assert left == {"trace.json", "steps.jsonl", step_file(0), step_file(1)}


def test_a_trace_removes_no_checkpoint(tmp_path, steps):
    checkpoint = Checkpoint(SPEC, 3, initial_snapshot(SPEC), None, "a", "paddle")
    path = save_checkpoint(tmp_path, checkpoint)
    with pytest.raises(UsageError, match="is no part of a trace"):
        write_trace(tmp_path, HEADER, steps[:1])
    assert path.exists()
    with pytest.raises(UsageError, match="is no part of a trace"):
        clear_trace(tmp_path)
    assert path.exists()


# cut short


def test_a_last_line_that_is_cut_off_anywhere_does_not_count(trace):
    path = trace.folder / "steps.jsonl"
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for end in {*range(start, len(content), 29), len(content) - 1}:
        path.write_bytes(content[:end])
        whole = [0, 1, 2] if end == len(content) - 1 else [0, 1]  # but for the line break
        assert trace.numbers() == whole


def test_a_writer_that_did_not_finish_leaves_a_trace_that_says_so(tmp_path, steps):
    folder = tmp_path / "trace"
    for recorded, said in ((0, "cut before its first step was whole"), (2, "cut after step 1")):
        recorder = Writer(folder, HEADER)
        for step in range(recorded):
            recorder.step(step, steps[step])
        assert Trace(folder).cut() == said
    recorder.close()
    assert Trace(folder).cut() == ""
    planned = write_trace(tmp_path / "planned", HEADER | {"steps": 3}, steps[:2])
    assert Trace(planned).cut() == "cut after step 1 (2 of 3 steps)"
    assert Trace(write_trace(planned, HEADER | {"steps": 3}, steps)).cut() == ""


@pytest.mark.parametrize("recorded", [1, 3])
def test_a_line_that_the_disk_has_no_room_for_is_taken_back(tmp_path, recorded):
    """The kernel writes a part of it before it fails: here at a limit of the files' size."""
    code = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "from parity.trace.writer import Writer\n"
        "folder, recorded = Path(sys.argv[1]), int(sys.argv[2])\n"
        "writer = Writer(folder, {}); tensors = {'weight/' + 'x' * 60: np.zeros(())}\n"
        "for step in range(recorded): writer.step(step, tensors)\n"
        "room = (folder / 'steps.jsonl').stat().st_size + 50\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (room, 2 * room))\n"
        "try: writer.step(recorded, tensors)\n"
        "finally:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * room, 2 * room))\n"
        "    if recorded == 3: writer.step(recorded, tensors)"
    )
    folder = tmp_path / "trace"
    done = run_python("-c", code, folder, recorded)
    said = f"{folder}/steps.jsonl: cannot be written: File too large; the trace holds the steps"
    assert done.stderr.endswith(f"UsageError: {said} up to {recorded - 1}\n")
    lines = (folder / "steps.jsonl").read_text()
    assert lines.endswith("}\n")
    assert lines.count("\n") == recorded + (recorded == 3)  # it goes on where there is room
    assert "\0" not in lines


# following while it is written


def test_the_writer_waits_for_the_reader(tmp_path, steps):
    folder, tensors = tmp_path / "trace", {"weight/x": np.arange(3.0)}
    recorder = Writer(folder, HEADER, most_pending=2)
    done = []

    def write():
        for step in range(5):
            recorder.step(step, tensors)
            done.append(step)
        recorder.close()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    wait_for(lambda: len(done) == 2, seconds=5)
    time.sleep(0.1)
    assert done == [0, 1]
    (folder / step_file(0)).unlink()
    wait_for(lambda: len(done) == 3, seconds=5)
    time.sleep(0.05)
    assert done == [0, 1, 2]
    (folder / step_file(1)).unlink()
    (folder / step_file(2)).unlink()
    writer.join(timeout=5)
    assert done == [0, 1, 2, 3, 4]


def test_a_reader_follows_and_makes_room(tmp_path, steps):
    folder = tmp_path / "trace"
    writer = threading.Thread(
        target=lambda: [
            (r := Writer(folder, HEADER, most_pending=1)),
            [r.step(k, tensors) for k, tensors in enumerate(steps)],
        ],
        daemon=True,
    )
    writer.start()
    trace = wait_for_trace(folder, lambda: True)
    for expected, found in zip(
        steps, follow(trace, 3, lambda: True, delete=lambda _: True), strict=True
    ):
        np.testing.assert_array_equal(found["loss/global"], expected["loss/global"])
    writer.join(timeout=5)
    assert not list(folder.glob("step-*.safetensors"))
    assert len(list(trace.lines())) == 3


def test_a_reader_hears_of_a_dead_writer(trace):
    def dead():
        raise UsageError("the writer is gone")

    follower = follow(trace, 4, dead, delete=lambda _: False)
    for _ in range(3):
        next(follower)
    with pytest.raises(UsageError, match="the writer is gone"):
        next(follower)
    with pytest.raises(UsageError, match="the writer is gone"):
        wait_for_trace(trace.folder / "none", dead)


ORPHAN = """
import os, sys, time
if os.fork():
    time.sleep(60)
from pathlib import Path
import numpy as np
from parity.base.errors import UsageError
from parity.trace.writer import Writer
folder = Path(sys.argv[1])
recorder = Writer(folder, {}, most_pending=1)
(folder / "ready").touch()
recorder.step(0, {"weight/x": np.zeros(2)})
try:
    recorder.step(1, {"weight/x": np.zeros(2)})
except UsageError as error:
    (folder / "said").write_text(str(error))
"""


def test_a_writer_whose_reader_died_gives_up(tmp_path):
    """The parent of the writer is a process that is killed while the writer waits."""
    folder = tmp_path / "trace"
    reader = start(["-c", ORPHAN, folder], stdout=None, stderr=None)
    try:
        wait_for((folder / step_file(0)).exists, seconds=20)
        time.sleep(0.1)
        assert not (folder / "said").exists()
    finally:
        reader.kill()
        reader.wait()
    wait_for((folder / "said").exists, seconds=20)
    assert (folder / "said").read_text().endswith("the reader of this trace is gone")


def test_a_trace_replaces_what_a_killed_writer_left(trace, steps):
    (trace.folder / f"{UNFINISHED}{step_file(3)}.a1b2").write_text("half a step")
    (trace.folder / RECORDING).touch()
    write_trace(trace.folder, HEADER, steps[:1])
    left = {path.name for path in trace.folder.iterdir()}
    assert left == {"trace.json", "steps.jsonl", step_file(0)}
