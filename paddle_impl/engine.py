"""Load the framework with the settings that must be made before its first import."""

import os
import warnings
from pathlib import Path

from parity.base.errors import UsageError


def load_engine(threads: int, device: str = "cpu"):
    """Import Paddle, set up for static graphs; call it before any other import of it.

    Args:
      threads: CPU threads of each replica.
      device: "cpu" or "gpu".

    Returns:
      The module `paddle`.

    Raises:
      UsageError: if this Paddle lacks the engine, or is not installed.
    """
    del device  # decided when the replicas' places are chosen
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("GLOG_minloglevel", "2")
    # The sum of the replicas' gradients is then always taken in the same order.
    os.environ.setdefault("FLAGS_cpu_deterministic", "1")
    # What is in a loop runs in the replica's thread: hardly two operations are ready at once,
    # and handing each to another thread took 7 % of a step of nmt-bahdanau.
    os.environ.setdefault("FLAGS_new_executor_serial_run", "1")
    if "AuthenticAMD" in _processor():
        # The bundled MKL picks its fastest kernels by the vendor's name unless told otherwise.
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    # Paddle brings its own zlib, with which NumPy's extensions cannot be loaded any more.
    import numpy.random  # noqa: F401

    try:
        import paddle
        from paddle.base import core
    except ImportError as error:
        raise UsageError(f"paddle cannot be imported ({error}); allowed: 2.6.2") from None
    if not hasattr(core, "ParallelExecutor"):
        raise UsageError(
            f"paddle is {paddle.__version__}, which has no ParallelExecutor; allowed: 2.6.2"
        )
    # Said of an operation that Paddle itself puts in.
    warnings.filterwarnings("ignore", "The Attr\\(force_cpu\\) of Op", UserWarning)
    paddle.enable_static()
    return paddle


def versions() -> dict[str, str]:
    """Return the versions that a trace records."""
    import numpy
    import paddle

    return {"paddle": paddle.__version__, "numpy": numpy.__version__}


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
