"""`parity scale`: its model of cost against exact small cases and simulations of every message.

The simulations are witnesses: they send one message after another, and share none of the
model's formulas, nor do the sizes of gradients that are counted here by hand.
"""

import itertools
import json
import math

import pytest
from conftest import assert_one_line

from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.twins.scale.model import (
    Engine,
    Link,
    asked_for,
    asynchronous_rate,
    ring,
    servers,
)
from parity.twins.scale.timed_step import REPEATED, Measured, step_and_software
from parity.twins.scale.workload import (
    STRATEGIES,
    different_words,
    gradients,
)
from parity.twins.spec.spec import preset

LINK = Link(latency=0.5, bandwidth=4.0)
FREE = Engine()


def simulated_ring(ranks: int, size: float, link: Link, engine: Engine) -> tuple[float, float]:
    """Send every chunk of a ring; return (when all ranks have all sums, bytes rank 0 sent)."""
    chunk = size / ranks
    has = {
        (rank, rank): 0.0 for rank in range(ranks)
    }  # (rank, chunk it may send) -> since when
    busy, sent = [0.0] * ranks, 0.0  # when each rank's link is free
    for turn in range(2 * (ranks - 1)):
        received = {}
        for rank in range(ranks):
            which = (rank - turn) % ranks
            start = max(busy[rank], has[rank, which]) + engine.per_message
            busy[rank] = start + chunk * (1 / link.bandwidth + engine.per_byte)
            received[(rank + 1) % ranks, which] = busy[rank] + link.latency
            sent += chunk if rank == 0 else 0.0
        has |= received
    return engine.per_collective + max(has.values()), sent


def simulated_requests(count: int, each: float, latency: float) -> float:
    """Ask for messages, two at a time; return when the last has come."""
    arrived: list[float] = []
    free = 0.0
    for i in range(count):
        asked = 0.0 if i < 2 else arrived[i - 2]
        free = max(free, asked + latency) + each
        arrived.append(free + latency)
    return arrived[-1]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(
    "engine", [FREE, Engine(per_message=0.1), Engine(per_byte=1.0), Engine(per_collective=3.0)]
)
def test_a_ring_takes_as_long_as_its_messages(ranks, engine):
    seconds, sent = simulated_ring(ranks, 60.0, LINK, engine)
    exchange = ring(ranks, 60.0, LINK, engine)
    assert exchange.seconds == pytest.approx(seconds)
    assert exchange.sent == pytest.approx(sent)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 30])
@pytest.mark.parametrize("latency", [0.0, 0.1, 0.5, 0.7, 20.0])
def test_messages_that_are_asked_for_take_as_long_as_a_simulation(count, latency):
    found = asked_for(count, 1.0, latency)
    assert found == pytest.approx(simulated_requests(count, 1.0, latency))


def test_a_ring_of_segments_waits_for_each_pair_of_them():
    # chunks of 30 bytes in three segments: each half of the ring asks for three, two at a time
    engine = Engine(segment=10)
    each = 10 / LINK.bandwidth
    expected = 2 * simulated_requests(3, each, LINK.latency)
    assert ring(2, 60.0, LINK, engine).seconds == pytest.approx(expected)
    # a chunk has two segments at least
    expected = 2 * simulated_requests(2, 15 / LINK.bandwidth, LINK.latency)
    assert ring(2, 60.0, LINK, Engine(segment=1000)).seconds == pytest.approx(expected)


def test_servers_carry_the_gradients_of_all_ranks():
    exchange = servers(6, 2, push=8.0, pull=20.0, link=LINK, engine=FREE)
    # each of two servers receives 6 x 8 / 2 bytes and sends 6 x 20 / 2
    assert exchange.seconds == pytest.approx(3 * 0.5 + (24.0 + 60.0) / 4.0)
    assert exchange.sent == 60.0
    # with more servers than ranks, a rank's own link is the limit
    assert servers(2, 8, 8.0, 20.0, LINK, FREE).seconds == pytest.approx(1.5 + 28.0 / 4.0)


def test_asynchronous_ranks_are_busy_until_the_servers_are_full():
    alone = 2.0 + servers(1, 1, 8.0, 8.0, LINK, FREE).seconds
    assert asynchronous_rate(1, 1, 2.0, 8.0, 8.0, LINK, FREE) == pytest.approx(1 / alone)
    assert asynchronous_rate(2, 1, 2.0, 8.0, 8.0, LINK, FREE) == pytest.approx(2 / alone)
    # a server's link passes 4 bytes a second in each direction
    assert asynchronous_rate(100, 1, 2.0, 8.0, 8.0, LINK, FREE) == pytest.approx(0.5)
    assert asynchronous_rate(100, 3, 2.0, 8.0, 8.0, LINK, FREE) == pytest.approx(1.5)


def test_gradients_have_the_bytes_of_the_parameters():
    spec = preset("language-model", "tiny").replace(
        vocabulary_size=50, embedding_size=3, hidden_size=2, num_layers=1, time=7
    )
    elements = 50 * 3 + (3 + 2 + 1) * 8 + 2 * 50 + 50
    found = gradients(spec, 4, 12)
    assert (found.dense, found.embeddings) == (4 * elements, 4 * 150)
    rows = different_words(50, 4 * 7)
    touched = found.sparse - (found.dense - found.embeddings)
    assert touched == pytest.approx(rows * (3 * 4 + 8))
    of_any_rank = found.summed - (found.dense - found.embeddings)
    assert of_any_rank == pytest.approx(different_words(50, 12 * 7) * 3 * 4)
    assert gradients(spec.replace(dtype="float64"), 4, 4).dense == 8 * elements


@pytest.mark.parametrize("vocabulary", [1, 2, 5])
def test_different_words_are_expected_as_counted(vocabulary):
    """Over all texts of three words, each with its probability."""
    weights = [1 / (i + 1) for i in range(vocabulary)]
    total, expected = sum(weights), 0.0
    for a in range(vocabulary):
        for b in range(vocabulary):
            for c in range(vocabulary):
                chance = math.prod(weights[i] / total for i in (a, b, c))
                expected += chance * len({a, b, c})
    assert different_words(vocabulary, 3) == pytest.approx(expected)


# what `parity scale` measures of a side: costs that noise may hide, and what is then said


SPEC = preset("language-model", "tiny").replace(batch_size=8)
FIXED, PER_ROW, PER_COLLECTIVE, PER_BYTE = 0.01, 0.002, 0.003, 2e-9
SIZE = gradients(SPEC, 4, 8).summed


def measured(noise=(0.0,), per_byte=PER_BYTE, per_row=PER_ROW, cores=2) -> Measured:
    """Measure a machine on which each time has the next of some errors, again and again."""
    errors = itertools.cycle(noise)

    def seconds(spec, ranks, copies):
        assert (ranks, copies) in ((1, 1), (2, 1), (1, 2))
        time = FIXED + per_row * spec.training.batch_size / ranks + next(errors)
        if ranks == 2:
            time += PER_COLLECTIVE
            if spec.model.hidden_size == SPEC.model.hidden_size:
                time += per_byte * SIZE
        return time

    return step_and_software(SPEC, Engine(), seconds, cores)


def test_the_costs_of_a_quiet_machine_are_found():
    found = measured()
    assert (found.compute.fixed, found.compute.per_row) == pytest.approx((FIXED, PER_ROW))
    assert found.engine.per_collective == pytest.approx(PER_COLLECTIVE)
    # each of two ranks sends as many bytes as the summed gradients have
    assert found.engine.per_byte == pytest.approx(PER_BYTE)
    assert found.engine.per_message > 0
    assert {len(each) for each in found.readings.values()} == {1, REPEATED}


def test_a_step_that_seems_to_take_no_longer_with_more_rows_is_refused():
    with pytest.raises(UsageError, match=r"no longer with 16 rows than with 4 in 3 .* allowed"):
        measured(per_row=-0.0001)


def test_what_rows_cost_is_measured_again_if_noise_hides_it():
    # the step with twice the rows was the fastest, the first time
    found = measured([0.0, 0.0, -0.03, *[0.0] * 100])
    assert len(found.readings["8 rows"]) > 1
    assert found.compute.per_row > 0


def test_software_is_not_measured_where_ranks_would_share_a_core():
    found = measured(cores=1)
    assert found.engine == Engine()


# `parity scale`: its command line, its tables and its page, from a step that is given


GIVEN = (
    *("--preset=tiny", "--sides=paddle", "--compute=0.01/0.002"),
    *("--links=lan=1gbit/0.1ms", "--most=64"),
)


@pytest.fixture
def scaled(tmp_path, capsys):
    """Return a function that runs the command; it returns what it printed and scale.json."""

    def run(*words):
        assert main(parity, ["scale", *GIVEN, f"--out={tmp_path}", *words]) == 0
        return capsys.readouterr().out, json.loads((tmp_path / "scale.json").read_text())

    return run


def curve(values, scaling, strategy):
    return values["predictions"]["paddle"]["lan"][scaling][strategy]


def test_each_strategy_and_number_of_ranks_is_predicted(scaled):
    _, values = scaled()
    found = values["predictions"]["paddle"]["lan"]
    assert found["ranks"] == [1, 2, 4, 8, 16, 32, 64]
    for scaling in ("weak", "strong"):
        assert set(found[scaling]) == set(STRATEGIES)
        for each in found[scaling].values():
            assert {len(column) for column in each.values()} == {7}
    # 20 rows are none for some of 32 ranks
    assert curve(values, "strong", "ring")["seconds"][5:] == [None, None]


def test_the_step_of_two_ranks_is_computed_by_hand(scaled):
    _, values = scaled("--links=lan=8mbit/100ms")
    size = gradients(SPEC, 20, 40).summed
    # gloo: two segments, asked for at once, in each half of the ring
    expected = 0.01 + 20 * 0.002 + 2 * (2 * 0.1 + size / 2 / 1e6)
    assert curve(values, "weak", "ring")["seconds"][1] == pytest.approx(expected)
    assert curve(values, "weak", "ring")["sent"][1] == pytest.approx(size)
    both = curve(values, "weak", "ring")
    hidden = both["seconds"][1] - both["overlapped"][1]
    assert hidden == pytest.approx(2 / 3 * (0.01 + 20 * 0.002))


def test_the_text_names_what_was_given_and_where_it_ends(scaled, tmp_path):
    printed, _ = scaled()
    for words in ("per message", "not measured", "gradients 0.62 MB", "overlap", "stragglers"):
        assert words in printed
    assert (tmp_path / "scale.txt").read_text() in printed + "\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--links=lan"],
        ["--links=lan=fast/1ms"],
        ["--links=lan=1gbit/-1ms"],
        ["--links=a=1gbit/1ms,a=2gbit/1ms"],
        ["--local=1gbit"],
        ["--compute=0/0"],
        ["--compute=x/1"],
        ["--sides=torch"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, tmp_path, capsys):
    status = main(parity, ["scale", *GIVEN, f"--out={tmp_path}", *words])
    assert "allowed" in assert_one_line(status, capsys.readouterr().err)
