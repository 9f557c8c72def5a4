"""Load the framework with the settings that must be made before its first import."""

import os
import re
import sys
import tempfile
from contextlib import contextmanager

from parity.base.allocator import keep_freed_memory
from parity.base.errors import UsageError


def load_engine(threads: int, device: str = "cpu"):
    """Import TensorFlow, set up for static graphs; call it before any other import of it.

    Args:
      threads: CPU threads of each replica.
      device: "cpu" or "gpu".

    Returns:
      The module `tensorflow`.

    Raises:
      UsageError: if this TensorFlow lacks the engine, or is not installed.
    """
    keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # or it looks for a driver, and complains
    # differs: the pool that operations share is made before any session, whose own setting of
    # threads comes too late: one replica of one thread would use every core
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    try:
        with _without_greeting(), _without_keras():
            import tensorflow as tf
    except ImportError as error:
        raise UsageError(f"tensorflow cannot be imported ({error}); allowed: 2.21.0") from None
    if not hasattr(tf.compat.v1, "Session"):
        raise UsageError(
            f"tensorflow is {tf.__version__}, which has no compat.v1.Session; allowed: 2.21.0"
        )
    tf.compat.v1.disable_eager_execution()
    return tf


def versions() -> dict[str, str]:
    """Return the versions that a trace records."""
    import numpy
    import tensorflow

    return {"tensorflow": tensorflow.__version__, "numpy": numpy.__version__}


@contextmanager
def _without_keras():
    """Keep TensorFlow from loading Keras for its optimisers' sake, if none has asked for it.

    No network here is made of it, and it takes longer than most of the rest. It can be imported
    as ever afterwards.
    """
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras.src"] = None  # which ends its import; TensorFlow goes on without
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "keras"]:
            del sys.modules[name]


@contextmanager
def _without_greeting():
    """Hold back what libraries say as they are loaded, before their log levels count.

    Lines that are no such log lines are printed in the end.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if not re.match(rb"[IW]\d{4} |WARNING: All log messages before absl", line):
                    os.write(2, line)
