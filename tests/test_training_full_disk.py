"""A full disk ends a training in one line, and the newest checkpoint stays."""

import resource

import pytest
from conftest import ONE_FRAMEWORK, assert_one_line, ended, flags, write_text

from parity.twins.training.checkpoint import newest_checkpoint

EVENTS = 2000  # bytes; a checkpoint of the tiny network has 9,000
CHECKPOINT = 6000


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a text of 200 steps an epoch, after which a checkpoint is due."""
    return write_text(tmp_path_factory.mktemp("text") / "data", 7 * 5 * 200)


@ONE_FRAMEWORK
@pytest.mark.parametrize(
    ("size", "steps", "named"),
    [(EVENTS, 400, "events"), (CHECKPOINT, 4, "checkpoints/step-00000004.safetensors")],
)
def test_no_room_is_one_line(framework, text, cache, tmp_path, size, steps, named):
    out = tmp_path / "run"
    given = {"data": text, "cache": cache, "out": out}
    ended(framework.train(*flags(**given, steps=3)))
    job = framework.train(*flags(**given, resume=True, epochs=100_000, steps=steps))
    # Every file now ends there, as on a full disk: Python ignores the signal that tells of it.
    resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (size, size))
    status, _, errors = job.wait()
    assert job.printed() == ""
    line = assert_one_line(status, errors)
    assert line == f"error: {out / named}: cannot be written: File too large"
    notes = []
    assert newest_checkpoint(out / "checkpoints", notes).step == 3
    assert notes == []
    assert not list(out.rglob(".*"))
    # besides: how many replicas, from which checkpoint, and how far it has come
    assert len(errors.splitlines()) <= 4, errors
