"""The test behind `parity converge`, against numbers worked by hand."""

import math

import numpy as np
import pytest

from parity.twins.converge.equivalence import POWER, paired_equivalence, pairs_needed


def t_below(t: float) -> float:
    """Return P(T < t) for two degrees of freedom, for which there is a closed form."""
    return 0.5 + t / (2 * math.sqrt(2 + t * t))


# Differences of 0.01, 0.02 and 0.03: their mean is 0.02, their standard deviation 0.01, and the
# error of the mean 0.01 / sqrt(3).
A, B = [1.01, 1.02, 1.03], [1.0, 1.0, 1.0]


def test_the_two_one_sided_tests_are_those_worked_by_hand():
    found = paired_equivalence(A, B, 0.05)
    assert found.count == 3
    assert found.mean == pytest.approx(0.02)
    assert found.deviation == pytest.approx(0.01)
    # 0.03 below the margin and 0.07 above its negative: t is -sqrt(27) and sqrt(147)
    assert found.p == pytest.approx(t_below(-math.sqrt(27)))
    assert found.p == pytest.approx(0.0175493, abs=1e-7)
    assert found.shown
    near = paired_equivalence(A, B, 0.03)
    assert near.p == pytest.approx(t_below(-math.sqrt(3)))  # 0.1127
    assert not near.shown


def test_the_interval_is_the_one_worked_by_hand():
    found = paired_equivalence(A, B, 0.05)
    half = 2.9199856 * 0.01 / math.sqrt(3)  # t of 0.95 at two degrees of freedom, from a table
    assert found.low == pytest.approx(0.02 - half, abs=1e-8)
    assert found.high == pytest.approx(0.02 + half, abs=1e-8)


def test_the_interval_lies_within_the_margin_exactly_if_the_test_passes():
    draw = np.random.default_rng(1)
    shown = 0
    for _ in range(300):
        found = paired_equivalence(draw.normal(0.3, 1, 5), draw.normal(0, 0.5, 5), 1.5)
        assert found.shown == (found.low > -1.5 and found.high < 1.5)
        shown += found.shown
    assert 0 < shown < 300


def test_results_that_never_differ_leave_no_doubt():
    assert paired_equivalence([2.0, 3.0], [2.0, 3.0], 0.01).shown
    apart = paired_equivalence([2.0, 3.0], [1.0, 2.0], 0.5)
    assert (apart.low, apart.high, apart.p) == (1.0, 1.0, 1.0)


def test_the_number_of_seeds_is_enough_for_the_stated_power():
    draw, needed = np.random.default_rng(3), pairs_needed(1.0, 1.0)
    assert needed == 11  # (1.81 + 1.37) / sqrt(11) is below 1, (1.83 + 1.38) / sqrt(10) above
    passed = [
        paired_equivalence(draw.normal(0, 1, needed), np.zeros(needed), 1).shown
        for _ in range(2000)
    ]
    assert np.mean(passed) == pytest.approx(POWER, abs=0.05)
    assert pairs_needed(0.0, 1.0) == 2
    assert pairs_needed(1.0, 1e-6) is None
