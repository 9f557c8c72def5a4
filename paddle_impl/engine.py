"""Loads the framework with the settings that must be made before it is first imported."""

import linecache
import os
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from paddle_impl import mkl_cpu_type
from parity.base.errors import UsageError
from parity.base.process import stop_signals_wait
from parity.twins.spec.gpus import compute_exactly_on_gpus, settings_on_gpus


def load_engine(threads: int, device: str = "cpu"):
    """Import Paddle and set it up for static graphs, before anything else imports it.

    Args:
      threads: the number of CPU threads of each replica.
      device: the kind of device that replicas run on, "cpu" or "gpu".

    Returns:
      The module `paddle`.

    Raises:
      UsageError: if Paddle is not installed, or this version lacks the engine.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("GLOG_minloglevel", "2")
    # Makes the order in which the replicas' gradients are summed always the same.
    os.environ.setdefault("FLAGS_cpu_deterministic", "1")
    # Runs the operations of a loop in the replica's thread: two are rarely ready at the same
    # time, and passing each one to another thread took 7 % of a step of nmt-bahdanau.
    os.environ.setdefault("FLAGS_new_executor_serial_run", "1")
    if device == "gpu":
        compute_exactly_on_gpus()
    if mkl_cpu_type.VARIABLE not in os.environ and device == "cpu":
        kernels = mkl_cpu_type.fastest_kernels()
        if kernels:
            os.environ[mkl_cpu_type.VARIABLE] = kernels
    # Paddle's library exports zlib's symbols. Had zlib not bound its own by then, whatever
    # unpacks anything later (`import numpy.random` does) would end with SIGSEGV.
    zlib.decompress(zlib.compress(b""))
    try:
        with stop_signals_wait(), _home():
            import paddle
            from paddle.base import core, framework
            from paddle.base.layers import math_op_patch
        mkl_cpu_type.start_kernels()
    except (ImportError, OSError) as error:  # OSError: no room for a library
        raise UsageError(f"paddle cannot be imported ({error}); allowed: 2.6.2") from None
    if not hasattr(core, "ParallelExecutor"):
        raise UsageError(
            f"paddle is {paddle.__version__}, which has no ParallelExecutor; allowed: 2.6.2"
        )
    # This warning is about an operation that Paddle itself adds.
    warnings.filterwarnings("ignore", "The Attr\\(force_cpu\\) of Op", UserWarning)
    # Each sum or product with a tensor of unknown batch size warns of what Paddle 1 did, and
    # reads the sources of all its callers for that: 40 % of the time to build a program.
    math_op_patch.inspect = SimpleNamespace(stack=lambda: [None, ("", "", 0)])
    framework.traceback = SimpleNamespace(extract_stack=_callers)
    paddle.enable_static()
    return paddle


def _callers() -> list[tuple[str, int, str, str]]:
    """Return the calls that an operation keeps, as `traceback.extract_stack` does.

    That looks at every caller's source file on the disk for every operation, a third of the
    time to build a program.
    """
    found, frame = [], sys._getframe(1)
    while frame:
        code, line = frame.f_code, frame.f_lineno
        text = linecache.getline(code.co_filename, line).strip()
        found.append((code.co_filename, line, code.co_name, text))
        frame = frame.f_back
    return found[::-1]


def versions() -> dict[str, str]:
    """Return the versions that a trace records."""
    import numpy
    import paddle

    return {"paddle": paddle.__version__, "numpy": numpy.__version__} | settings_on_gpus()


@contextmanager
def _home() -> Iterator[None]:
    """Lend a folder where HOME cannot be written: Paddle makes one there as it is imported."""
    try:
        Path("~/.cache/paddle/dataset").expanduser().mkdir(parents=True, exist_ok=True)
    except OSError:
        with tempfile.TemporaryDirectory() as folder:
            before = os.environ.get("HOME")
            os.environ["HOME"] = folder
            try:
                yield
            finally:
                del os.environ["HOME"]
                if before is not None:
                    os.environ["HOME"] = before
    else:
        yield
