"""How fast the machine multiplies matrices, as every library of a side does it."""

import numpy as np
import pytest

from parity.base.errors import UsageError
from parity.twins.bench import product_rates as module
from parity.twins.bench.product_rates import product_rates
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import preset
from parity.twins.training.flops import Product, product_flops, step_products

_SMALL = [Product(8, 20, 30, times=3), Product(20, 64, 30, first_transposed=True)]


def test_a_framework_that_is_not_timed_need_not_be_installed():
    rates = product_rates("float32", 1, [], _SMALL)
    assert list(rates.large) == ["numpy"]
    assert rates.limit == rates.large["numpy"]
    assert rates.of_step > 0


def test_the_rate_of_a_step_counts_each_product_by_its_fastest_library(monkeypatch):
    seconds = {"numpy": [[2.0, 8.0, 1.0], [1.0, 4.0, 1.0]], "paddle": [[4.0, 5.0, 9.0]] * 2}
    monkeypatch.setattr(module, "_seconds", lambda library, *_: seconds[library])
    first, second = _SMALL
    rates = product_rates("float32", 2, ["paddle"], [first, second, first])
    large = module._LARGE.flops
    assert rates.large == {"numpy": large / 2 + large, "paddle": large / 2}
    flops = 2 * first.flops + second.flops
    assert rates.of_step == 2 * flops / (5 + 1 + 5)


def test_library_that_fails_is_a_line():
    with pytest.raises(UsageError, match=r"^numpy cannot multiply matrices here: .*float7"):
        module._seconds("numpy", "float7", 2, _SMALL)


def _corners(library: str) -> list[float]:
    """Return what is taken of three products of matrices of ones; runs in the framework."""
    return [
        np.ravel(
            module._multiplier(library, Product(5, inner, 7, *how, times=3), "float64")()
        ).item()
        for inner, *how in ((95, False, False), (96, False, True), (97, True, False))
    ]


@pytest.mark.parametrize("library", ["numpy", *FRAMEWORKS])
def test_what_is_timed_is_the_whole_product(library, request):
    """Its corner adds as many ones as a row has; three products are added up."""
    found = (
        _corners(library)
        if library == "numpy"
        else request.getfixturevalue("frameworks")[library].call(_corners, library)
    )
    assert found == [285, 288, 291]


def test_the_products_of_a_step_are_those_that_are_counted():
    model = preset("language-model", "bench")
    time, rows = model.text.time, model.training.batch_size
    of_replica = step_products(model, 2)
    total = product_flops(model, {"lengths": np.full(rows, time)})
    assert sum(each.flops for each in of_replica) == total / 2
    recurrent = [each for each in of_replica if each.times == time]
    assert {(each.first_shape, each.second_shape) for each in recurrent} == {
        ((rows // 2, 200), (200, 800)),
        ((rows // 2, 800), (200, 800)),
    }


def test_the_products_of_pairs_leave_out_scores_and_contexts():
    pairs = preset("seq2seq", "tiny-nmt")
    rows = pairs.training.batch_size
    source, target = pairs.text.source_limit, pairs.text.target_limit + 1
    lengths = {"lengths": np.full(rows, target), "source_lengths": np.full(rows, source)}
    scores = 3 * 4 * rows * source * target * pairs.model.hidden_size
    found = sum(each.flops for each in step_products(pairs, 1))
    assert found == product_flops(pairs, lengths) - scores
