"""Chooses, by measuring, which kernels Paddle's bundled MKL multiplies matrices with.

That MKL is of 2019 and looks at the processor's vendor: on those of another vendor than its own
it uses kernels for the oldest processors, unless `MKL_DEBUG_CPU_TYPE` names newer ones. Which
are the fastest depends on the processor alone, so it is measured once for each, in a third of a
second. Measured again, others might be chosen, and two runs on a machine must compute the same
bits: the first choice stays, even for a process that was measuring at the same time.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from parity.base.errors import UsageError
from parity.base.files import new_folder, read_file, sync_file, write_whole
from parity.base.machine import measured_here, processor_facts, user_cache
from parity.base.text import parse_json

VARIABLE = "MKL_DEBUG_CPU_TYPE"

# What the variable may say, from what is tried first: nothing, AVX2, AVX-512.
KERNELS = ("", "5", "7")

# How many times as fast the next kind must be to be taken. Measured on AMD processors: AVX2 is
# 2.6 to 3.0 times as fast as MKL's own choice, AVX-512 where there is one 1.9 times as AVX2.
# A machine that is busy disturbs a measurement by less.
_FASTER = 1.15

_LIBRARY = Path("libs", "libmklml_intel.so")
_OPENMP = "libiomp5.so"

# Prints the best rate of 40 products of two matrices [384, 384], in FLOP/s. A product takes a
# millisecond: some of them are interrupted by nothing else.
_PRODUCTS = """
import ctypes, resource, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
size = 384
multiply = ctypes.CDLL(sys.argv[1]).cblas_sgemm
multiply.restype = None
a, b, c = ((ctypes.c_float * size**2)(*([1.0] * size**2)) for _ in range(3))
one, none = ctypes.c_float(1), ctypes.c_float(0)
seconds = []
for _ in range(40):
    start = time.perf_counter()
    multiply(101, 111, 111, size, size, size, one, a, size, b, size, none, c, size)
    seconds.append(time.perf_counter() - start)
print(2 * size**3 / min(seconds))
"""


def fastest_kernels(folder: Path | None = None) -> str:
    """Return the value of `MKL_DEBUG_CPU_TYPE` that multiplies fastest, or "" for none.

    Args:
      folder: where the choice for this processor is kept; None for the user's cache.
    """
    library = _library()
    if library is None:
        return ""
    facts = json.dumps([processor_facts(), library.stat().st_size], sort_keys=True)
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    path = (folder or user_cache()) / f"mkl-{digest}" / "choice.json"
    kept = read_choice(path)
    if kept is not None:
        return kept
    rates = {kernels: measured_rate(library, kernels) for kernels in KERNELS}
    return keep_choice(path, choose(rates), rates)


def read_choice(path: Path) -> str | None:
    """Return the kernels that a file keeps; None without a file that can be read."""
    try:
        choice: str = parse_json(read_file(path))["choice"]
    except (OSError, UsageError, ValueError, KeyError, TypeError):
        return None
    return choice if choice in KERNELS else None


def keep_choice(path: Path, choice: str, rates: Mapping[str, float | None]) -> str:
    """Keep a choice with the rates it was made from; return the one that is kept."""
    values = {"choice": choice, "measured": rates} | measured_here()
    content = json.dumps(values, indent=2).encode()
    try:
        if path.exists():  # and cannot be read
            write_whole(path, content)
        with new_folder(path.parent) as temporary:
            write_whole(temporary / path.name, content)
            sync_file(temporary / path.name)
    except UsageError:  # without a folder that can be written to, every start measures
        return choice
    kept = read_choice(path)  # another process may have been first
    return choice if kept is None else kept


def choose(rates: Mapping[str, float | None]) -> str:
    """Return the fastest kernels; of about the same speed, those that were tried first.

    Args:
      rates: kernels -> FLOP/s, None for those that the processor cannot run.
    """
    chosen = ""
    for kernels, rate in rates.items():
        if rate is not None and rate > _FASTER * (rates[chosen] or 0):
            chosen = kernels
    return chosen


def start_kernels() -> None:
    """Let MKL and its OpenMP set themselves up in this thread, after Paddle is imported.

    By themselves they do so in the threads of the first replicas that compute: OpenMP then sets
    a variable of the environment while MKL reads a dozen of them for another replica, and a
    reader may find them moved, which ends the process.
    """
    library = _library()
    if library is None:
        return
    openmp = ctypes.CDLL(str(library.parent / _OPENMP))
    mkl = ctypes.CDLL(str(library))
    openmp.omp_get_max_threads()
    one = (ctypes.c_float * 1)(1.0)
    mkl.vsExp(1, one, one)
    scale = ctypes.c_float(1.0)
    mkl.cblas_sgemm(101, 111, 111, 1, 1, 1, scale, one, 1, one, 1, scale, one, 1)


def measured_rate(library: Path, kernels: str) -> float | None:
    """Return the rate of products on one core in FLOP/s, None if the processor cannot run them.

    Args:
      library: the path of MKL.
      kernels: one of `KERNELS`.
    """
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "LD_LIBRARY_PATH": str(library.parent),
        **({VARIABLE: kernels} if kernels else {}),
    }
    # A process of its own, which an instruction that the processor lacks may end.
    done = subprocess.run(
        [sys.executable, "-S", "-c", _PRODUCTS, str(library)],
        env=environment,
        capture_output=True,
        check=False,
    )
    return float(done.stdout) if done.returncode == 0 else None


def _library() -> Path | None:
    """Return the path of the MKL that Paddle brings, without importing Paddle."""
    found = importlib.util.find_spec("paddle")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / _LIBRARY
    return library if library.is_file() else None
