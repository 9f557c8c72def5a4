"""Batches come in order from a background thread, and so do its exceptions."""

import threading
import time

import pytest

from data.load import Prefetch


def alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_no_more_than_depth_items_are_ahead():
    done = []
    with Prefetch(done.append, 0, 100, depth=3) as items:
        next(items)
        time.sleep(0.2)
        assert len(done) <= 1 + 3 + 1  # used, waiting, and the one in hand
        assert len(done) >= 4  # but it does work ahead


def test_exception_arrives_in_its_place():
    def function(step):
        if step == 2:
            raise ValueError("step 2 is bad")
        return step

    with Prefetch(function, 0, 5) as items:
        assert next(items) == 0
        assert next(items) == 1
        with pytest.raises(ValueError, match="step 2 is bad"):
            next(items)
        assert list(items) == []
    assert alive() == []


def test_close_stops_a_thread_that_waits_to_deliver():
    items = Prefetch(lambda step: step, 0, 10**9, depth=2)
    assert next(items) == 0
    started = time.perf_counter()
    items.close()
    assert time.perf_counter() - started < 1
    assert alive() == []
    assert list(items) == []
    items.close()  # once more does no harm


def test_waiting_is_measured():
    def slow(step):
        time.sleep(0.05)
        return step

    with Prefetch(slow, 0, 4) as items:
        list(items)
        assert 0.15 < items.waited < 2
    with Prefetch(lambda step: step, 0, 4) as items:
        time.sleep(0.1)
        list(items)
        assert items.waited < 0.05
