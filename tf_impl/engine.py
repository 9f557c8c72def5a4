"""Loads the framework with the settings that must be made before it is first imported."""

import os
import re
import sys
import tempfile
from contextlib import contextmanager

from parity.base.errors import UsageError
from parity.base.plugins import without_module
from parity.base.process import keep_freed_memory, stop_signals_wait
from parity.twins.spec.gpus import compute_exactly_on_gpus, settings_on_gpus


def load_engine(threads: int, device: str = "cpu"):
    """Import TensorFlow and set it up for static graphs, before anything else imports it.

    Args:
      threads: the number of CPU threads of each replica.
      device: the kind of device that replicas run on, "cpu" or "gpu".

    Returns:
      The module `tensorflow`.

    Raises:
      UsageError: if TensorFlow is not installed, or this version lacks the engine.
    """
    keep_freed_memory()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # or it looks for a driver and prints errors
    else:
        compute_exactly_on_gpus()
        # It takes a GPU's whole memory otherwise, and a run has processes beside each other.
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # differs: the thread pool of all operations is made before any session exists, so a
    # session's setting comes too late: one replica with one thread would use every core
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    try:
        # Keras is loaded only for optimisers, which nothing here uses, and that takes longer
        # than most of the import.
        with stop_signals_wait(), without_greeting(), without_module("keras.src"):
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

    found = {"tensorflow": tensorflow.__version__, "numpy": numpy.__version__}
    if "horovod" in sys.modules:
        found["horovod"] = sys.modules["horovod"].__version__
    return found | settings_on_gpus()


@contextmanager
def without_greeting():
    """Suppress what libraries log while they load, before their log levels take effect.

    Any other line is printed at the end.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            for line in captured.read().splitlines(keepends=True):
                if not re.match(rb"[IW]\d{4} |WARNING: All log messages before absl", line):
                    os.write(2, line)
