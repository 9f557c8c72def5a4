"""How fast this machine multiplies large matrices: what no training can exceed.

Each library multiplies at its own rate, and which is the fastest depends on the processor. So
NumPy and every framework that is timed are asked, each in as many processes as there are cores,
one thread each, all at once.

`python -m parity.bench.product_rates LIBRARY DTYPE` is one of these processes: it says when it
is ready, waits for a line, multiplies for a second, and prints the highest rate in FLOP/s.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import numpy as np

from parity.base.errors import UsageError
from parity.base.parent import die_with_parent
from parity.base.plugins import load_object
from parity.spec.frameworks import FRAMEWORKS

NUMPY = "numpy"
_SIZE = 2048  # rows and columns of the matrices
_SECONDS = 1.0


def product_rates(dtype: str, cores: int, frameworks: Iterable[str]) -> dict[str, float]:
    """Return the highest rate of large products on all cores in FLOP/s, by library.

    Args:
      dtype: "float32" or "float64".
      cores: the number of processes that multiply at once.
      frameworks: the names of those to ask beside NumPy; they have to be installed.

    Raises:
      UsageError: if a library cannot multiply here.
    """
    return {library: _rate(library, dtype, cores) for library in (NUMPY, *frameworks)}


def _rate(library: str, dtype: str, cores: int) -> float:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, library, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | one_thread,
            text=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        for _ in range(cores)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # an empty one if it has failed
        for process in processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has failed
                process.stdin.write("\n")
                process.stdin.flush()
        found = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                last = (errors.strip() or "no output").splitlines()[-1]
                raise UsageError(f"{library} cannot multiply matrices here: {last}")
            found.append(float(output))
        return sum(found)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _multiplier(library: str, dtype: str) -> Callable[[], object]:
    """Return what takes one product of two matrices [_SIZE, _SIZE]."""
    if library != NUMPY:
        folder = FRAMEWORKS[library].folder
        load_object(f"{folder}.engine:load_engine")(1)
        made: Callable[[], object] = load_object(f"{folder}.products:multiplier")(_SIZE, dtype)
        return made
    ones = np.ones((_SIZE, _SIZE), dtype)
    return partial(np.matmul, ones, ones)


def main() -> None:
    """Measure one library on one core; see the top of this module."""
    multiply = _multiplier(*sys.argv[1:])
    multiply()
    print("ready", flush=True)
    sys.stdin.readline()
    seconds: list[float] = []
    end = time.perf_counter() + _SECONDS
    while not seconds or time.perf_counter() < end:
        started = time.perf_counter()
        multiply()
        seconds.append(time.perf_counter() - started)
    print(2 * _SIZE**3 / min(seconds), flush=True)


if __name__ == "__main__":
    main()
