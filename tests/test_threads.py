"""Independent pieces of work on all cores at once."""

import threading

import pytest

from parity import threads
from parity.threads import at_once


def test_results_come_in_order_and_as_many_run_at_a_time_as_there_are_cores(monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    together = threading.Barrier(3)

    def meet(number):
        together.wait(timeout=60)  # broken, if fewer than three are running
        return number

    assert at_once([lambda k=k: meet(k) for k in range(6)]) == list(range(6))
    assert at_once([]) == []


def test_the_first_error_in_order_is_raised():
    def fail(error):
        raise error

    with pytest.raises(ValueError, match="first"):
        at_once(
            [
                lambda: 1,
                lambda: fail(ValueError("first")),
                lambda: fail(KeyError("second")),
            ]
        )
