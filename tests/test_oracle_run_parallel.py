"""Independent pieces of work on all cores at once."""

import threading

import pytest

from parity.twins.oracle import run_parallel as threads
from parity.twins.oracle.run_parallel import run_parallel


@pytest.mark.parametrize(
    ("cores", "calls", "running"),
    [(1, 12, 1), (1, 3, 1), (3, 12, 3), (16, 12, 4), (2, 3, 3), (2, 4, 2), (2, 7, 4)],
)
def test_results_come_in_order_and_no_core_is_idle_while_there_are_calls(
    cores, calls, running, monkeypatch
):
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    together, now, most = threading.Barrier(running), set(), []

    def meet(number):
        now.add(number)
        most.append(len(now))
        if number < calls - calls % running:
            together.wait(timeout=60)  # broken, if fewer are running
        now.discard(number)
        return number

    assert run_parallel([lambda k=k: meet(k) for k in range(calls)]) == list(range(calls))
    assert max(most) == running
    assert run_parallel([]) == []


def test_the_first_error_in_order_is_raised():
    def fail(error):
        raise error

    with pytest.raises(ValueError, match="first"):
        run_parallel(
            [
                lambda: 1,
                lambda: fail(ValueError("first")),
                lambda: fail(KeyError("second")),
            ]
        )
