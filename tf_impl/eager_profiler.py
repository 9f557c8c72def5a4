"""Reads TensorFlow's profiler of functions, for which there is no session that keeps records.

The profiler writes a file with an event for each operation of a function, on the thread that
ran it, named "NAME:TYPE". The scopes in NAME say which phase the operation belongs to.
"""

import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from parity.twins.training.timeline import Event

_TAPE = "gradient_tape/"  # before the scope of the operations whose gradient is taken
_PHASE = re.compile(r"(?:replica_\d+/)?(forward|backward|all_reduce|update)/")
_OPERATION = re.compile(r"[\w.>][\w.>/-]*:[A-Z_]\w*")


@contextmanager
def profile_functions():
    """Yield a list that is filled with the Events of all functions when the context is left."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    events = []
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            yield events
        finally:
            tf.profiler.experimental.stop()
        for path in Path(folder).rglob("*.xplane.pb"):
            events += _read(path)


def _read(path):
    """Yield the Events in a file of the profiler."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    (started,) = [  # nanoseconds since the epoch; all times in the file count from then on
        stat.uint64_value
        for plane in space.planes
        for stat in plane.stats
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time"
    ]
    for plane in space.planes:
        names = {key: each.name for key, each in plane.event_metadata.items()}
        for thread, line in enumerate(plane.lines):
            for event in line.events:
                name = names[event.metadata_id]
                if not _OPERATION.fullmatch(name):
                    continue  # the profiler's own, or the executor's
                name, _, operation = name.rpartition(":")
                start = started + line.timestamp_ns + event.offset_ps / 1000
                yield Event(
                    operation,
                    name,
                    _phase(name),
                    f"thread {thread}",
                    start / 1000,
                    event.duration_ps / 1e6,
                )


def _phase(name):
    if name.startswith(_TAPE):
        return "backward"
    found = _PHASE.match(name)
    return found[1].replace("_", "-") if found else "other"
