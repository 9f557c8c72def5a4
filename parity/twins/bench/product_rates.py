"""How fast this machine multiplies matrices: what no training can exceed.

Each library multiplies at its own rate, and which is the fastest depends on the processor. So
NumPy and every framework that is timed are asked, each in as many processes as there are cores,
one thread each, all at once: for large matrices, and for those of a step.

`python -m parity.twins.bench.product_rates LIBRARY DTYPE` is one of these processes: it says
when it is ready, waits for a line of JSON that lists products, takes each of them for a while,
and prints a line of JSON with the least seconds of each.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from parity.base.errors import UsageError
from parity.base.plugins import load_object
from parity.base.process import die_with_parent
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.training.flops import Product

NUMPY = "numpy"
_LARGE = Product(2048, 2048, 2048)
_EQUAL, _SIZE = 24, 768  # products that show how steady the machine is
_SECONDS_OF_LARGE, _SECONDS_OF_STEP = 1.0, 0.2  # the latter for each of its products


@dataclass(frozen=True)
class ProductRates:
    """Rates of products on all cores at once, in FLOP/s.

    Attributes:
      large: library -> the highest rate of large products.
      of_step: the rate of a step's own products, each by the library that is fastest at it.
    """

    large: dict[str, float]
    of_step: float

    @property
    def limit(self) -> float:
        """Return the rate that no training can exceed."""
        return max(self.large.values())


def product_rates(
    dtype: str, cores: int, frameworks: Iterable[str], of_step: Sequence[Product]
) -> ProductRates:
    """Measure how fast products are taken.

    Args:
      dtype: "float32" or "float64".
      cores: the number of processes that multiply at once.
      frameworks: the names of those to ask beside NumPy; they have to be installed.
      of_step: the products that a core takes in a step.

    Raises:
      UsageError: if a library cannot multiply here.
    """
    distinct = list(dict.fromkeys(of_step))
    large: dict[str, float] = {}
    fastest = dict.fromkeys(distinct, float("inf"))
    for library in (NUMPY, *frameworks):
        of_processes = _seconds(library, dtype, cores, [_LARGE, *distinct])
        large[library] = sum(_LARGE.flops / each[0] for each in of_processes)
        for place, product in enumerate(distinct, start=1):
            slowest = max(each[place] for each in of_processes)
            fastest[product] = min(fastest[product], slowest)
    flops = sum(product.flops for product in of_step)
    return ProductRates(large, cores * flops / sum(fastest[product] for product in of_step))


def noise(cores: int) -> str:
    """Return in a line how much the time of equal work varies on this machine."""
    matrix, seconds = np.ones((_SIZE, _SIZE), np.float32), []
    for _ in range(_EQUAL):
        started = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - started)
    return noise_line(seconds, os.getloadavg()[0], cores)


def noise_line(seconds: Sequence[float], load: float, cores: int) -> str:
    """Return the same for some times of equal work.

    Args:
      seconds: the times.
      load: how many programs wanted a core in the last minute, on average.
    """
    apart = max(seconds) / min(seconds) - 1
    line = (
        f"noise: equal matrix products take up to {apart:.0%} longer than the fastest of "
        f"{len(seconds)}; smaller differences of speed say nothing"
    )
    if load < cores / 2:
        return line
    return f"{line}; other programs run here (load {load:.1f} on {cores} cores)"


def _seconds(
    library: str, dtype: str, cores: int, products: Sequence[Product]
) -> list[list[float]]:
    """Return for each process the least seconds that it took for each product."""
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
    listed = json.dumps([asdict(product) for product in products])
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # an empty one if it has failed
        for process in processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has failed
                process.stdin.write(f"{listed}\n")
                process.stdin.flush()
        found = []
        for process in processes:
            output, errors = process.communicate()
            if process.returncode:
                last = (errors.strip() or "no output").splitlines()[-1]
                raise UsageError(f"{library} cannot multiply matrices here: {last}")
            found.append(json.loads(output))
        return found
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _multiplier(library: str, product: Product, dtype: str) -> Callable[[], object]:
    """Return what takes a product of two matrices of ones, as often as it is taken."""
    if library != NUMPY:
        folder = FRAMEWORKS[library].folder
        made: Callable[[], object] = load_object(f"{folder}.devices:multiplier")(product, dtype)
        return made
    firsts = [np.ones(product.first_shape, dtype) for _ in range(product.times)]
    second = np.ones(product.second_shape, dtype)
    if product.first_transposed:
        firsts = [first.T for first in firsts]
    if product.second_transposed:
        second = second.T
    return lambda: sum((first @ second)[0, 0] for first in firsts)


def _least_seconds(multiply: Callable[[], object], limit: float) -> float:
    """Return the least seconds that a call takes, of those that fit into a limit."""
    multiply()
    least = float("inf")
    end = time.perf_counter() + limit
    while least == float("inf") or time.perf_counter() < end:
        started = time.perf_counter()
        multiply()
        least = min(least, time.perf_counter() - started)
    return least


def main() -> None:
    """Measure one library on one core; see the top of this module."""
    library, dtype = sys.argv[1:]
    if library != NUMPY:
        load_object(f"{FRAMEWORKS[library].folder}.engine:load_engine")(1)
    _multiplier(library, _LARGE, dtype)()
    print("ready", flush=True)
    products = [Product(**values) for values in json.loads(sys.stdin.readline())]
    found = []
    for product in products:
        limit = _SECONDS_OF_LARGE if product == _LARGE else _SECONDS_OF_STEP
        found.append(_least_seconds(_multiplier(library, product, dtype), limit))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
