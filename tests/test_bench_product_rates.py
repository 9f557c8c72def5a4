"""How fast the machine multiplies matrices, as every library of a side does it."""

import subprocess
import sys

import pytest

from parity.base.errors import UsageError
from parity.bench import product_rates as module
from parity.bench.product_rates import product_rates
from parity.spec.frameworks import FRAMEWORKS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_library_is_asked(dtype):
    rates = product_rates(dtype, 2, FRAMEWORKS)
    assert list(rates) == ["numpy", *FRAMEWORKS]
    assert all(rate > 0 for rate in rates.values())


def test_a_framework_that_is_not_timed_need_not_be_installed():
    assert list(product_rates("float32", 1, [])) == ["numpy"]


def test_library_that_fails_is_a_line():
    with pytest.raises(UsageError, match=r"^paddle cannot multiply matrices here: .*float7"):
        module._rate("paddle", "float7", 2)


@pytest.mark.parametrize("library", ["numpy", *FRAMEWORKS])
def test_what_is_timed_is_the_whole_product(library):
    """A product's corner needs all of a row and a column: as many ones as the matrix has."""
    code = (
        "import sys; from parity.bench import product_rates as m; m._SIZE = 96; "
        "print(m._multiplier(sys.argv[1], 'float64')())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, library], capture_output=True, text=True, check=True
    )
    assert "96." in found.stdout
