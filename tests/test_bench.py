"""The benchmark: real runs in turn; what it says of them, never how fast they are."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.base.errors import MismatchError, UsageError
from parity.twins.bench import product_rates as module
from parity.twins.bench.cases import (
    BenchCase,
    cases_of,
    strategy_cases,
)
from parity.twins.bench.product_rates import product_rates
from parity.twins.bench.ratios import check_losses, ratios_to_peers, scaling
from parity.twins.bench.report import bench_text
from parity.twins.bench.tables import strategy_rows
from parity.twins.bench.timing import (
    Measurements,
    bench,
    cases_to_time,
    check_timed,
    ended_cases,
)
from parity.twins.cli.options import BenchOptions
from parity.twins.launch.processes import PEERS
from parity.twins.launch.zipf_text import write_zipf_text
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import preset
from parity.twins.training.flops import Product, product_flops, step_products
from parity.twins.training.meter import WARM_UP

ROOT = Path(__file__).resolve().parent.parent


def test_generated_text_has_the_vocabulary_asked_for(tmp_path):
    spec = preset("language-model", "bench").replace(vocabulary_size=300, batch_size=4, time=5)
    _, folder = write_zipf_text(spec, 3, tmp_path)
    words = set((folder / "train.txt").read_text().split())
    assert len(words) == 298, "and <unk> and <eos> beside them"
    assert set((folder / "test.txt").read_text().split()) <= words


BENCH = preset("language-model", "bench")


def labels(cases, name):
    return [case.label for case in cases if case.name == name]


def test_replicas_of_several_stages_are_timed_where_there_is_a_core_for_each():
    options = BenchOptions(strategies=("paddle=layers",), replicas=(2,))
    assert labels(strategy_cases(options, 2, []), "paddle") == [
        "paddle-parallel-executor-1x1",  # the one device that the gain is taken over
        "paddle-parallel-executor-2x1",
        "paddle-layers-1x1-2-stages",
    ]
    hybrid = strategy_cases(options, 4, ["pytorch"])
    assert labels(hybrid, "paddle")[-1] == "paddle-layers-2x1-2-stages"
    # no peer has layers on several devices
    assert labels(hybrid, "pytorch") == [
        "pytorch-distributed-data-parallel-1x1",
        "pytorch-distributed-data-parallel-2x1",
    ]


def test_the_table_of_strategies_compares_each_with_what_it_should():
    speeds = {
        BenchCase("paddle", 1, 1, "parallel-executor"): 100,
        BenchCase("paddle", 2, 1, "parallel-executor"): 180,
        BenchCase("paddle", 2, 1, "parallel-do"): 150,
        BenchCase("paddle", 2, 1, "asynchronous"): 198,
        BenchCase("paddle", 1, 1, "layers", stages=2): 160,
        BenchCase("pytorch", 1, 1, "distributed-data-parallel"): 80,
        BenchCase("pytorch", 2, 1, "distributed-data-parallel"): 120,
        BenchCase("keras", 2, 1, "mirrored"): 90,
    }
    readings = {case.label: [speed, speed / 2] for case, speed in speeds.items()}
    rows = {row["label"]: row for row in strategy_rows(readings, list(speeds))}
    one, two = (f"paddle-parallel-executor-{n}x1" for n in (1, 2))
    assert (rows[two]["gain"], rows[two]["gain_over"]) == (1.8, one)
    assert rows[two]["to"] == {"pytorch": 1.5, "keras": 2.0}
    assert rows[two]["of_best"] == rows["paddle-parallel-do-2x1"]["gain"] == 1.0
    assert rows["paddle-parallel-do-2x1"]["of_best"] == pytest.approx(150 / 180)
    workers = rows["paddle-asynchronous-2x1"]
    assert (workers["of_best"], workers["best"]) == (1.1, two)
    assert workers["to"] == {}
    layers = rows["paddle-layers-1x1-2-stages"]
    assert (layers["gain"], layers["gain_over"], layers["to"]) == (1.6, one, {})
    assert layers["best"] == two  # which has as many threads
    ours = rows["pytorch-distributed-data-parallel-2x1"]
    assert (ours["gain"], ours["best"], ours["to"]) == (1.5, None, {})


def test_peers_are_needed_only_if_they_are_asked_for(monkeypatch, tmp_path):
    for name in PEERS:
        monkeypatch.setitem(PEERS, name, (PEERS[name][0], "no_such_module"))
    options = BenchOptions(out=tmp_path / "bench", strategies=("all",), peers=True)
    with pytest.raises(UsageError, match=r"no_such_module is not installed for .*PARITY_"):
        bench(BENCH, options, "")
    assert not options.out.exists()
    cases, left_out = cases_to_time(BENCH, replace(options, peers=False), 2)
    assert not any(case.is_peer for case in cases)
    assert list(left_out) == ["keras", "pytorch"]
    assert left_out["keras"].startswith("no_such_module is not installed for")


def test_a_side_that_trains_something_else_where_it_is_timed_is_refused():
    recorded = {"weight/a": "12", "weight/b": "34"}
    check_timed("paddle-1x1", recorded, recorded)
    for timed in ({"weight/a": "12", "weight/b": "35"}, {"weight/a": "12"}):
        with pytest.raises(MismatchError, match=r"^paddle-1x1 .* its last weight/b is not"):
            check_timed("paddle-1x1", recorded, timed)


def test_gain_is_taken_round_by_round():
    # the machine halves its speed from the first round to the second: the gain does not change
    readings = {"paddle-1x1": [100.0, 50.0], "paddle-2x1": [190.0, 95.0]}
    readings |= {"tensorflow-1x1": [10.0, 20.0], "tensorflow-2x1": [10.0, 30.0]}
    readings |= {"paddle-1x2": [1.0, 1.0]}
    cases = [
        BenchCase("paddle", 1, 1),
        BenchCase("tensorflow", 1, 1),
        BenchCase("paddle", 2, 1),
    ]
    cases += [BenchCase("tensorflow", 2, 1), BenchCase("paddle", 1, 2)]
    found = scaling(readings, cases)
    assert found["paddle"] == {"1": 1.0, "2": 1.9}
    assert found["tensorflow"]["2"] == pytest.approx(1.25)


def test_a_side_is_compared_with_each_peer_and_the_fastest_round_by_round():
    readings = {"paddle-2x1": [120.0, 60.0], "pytorch-2x1": [60.0, 30.0]}
    readings |= {"pytorch-1x2": [100.0, 40.0]}
    cases = [BenchCase("paddle", 2, 1), BenchCase("pytorch", 2, 1), BenchCase("pytorch", 1, 2)]
    assert ratios_to_peers(readings, cases) == {
        "paddle-2x1": {"pytorch-2x1": 2.0, "pytorch-1x2": 1.35, "best": 1.35}
    }
    assert ratios_to_peers({"paddle-2x1": [1.0]}, cases[:1]) == {}


def test_a_peer_that_trains_something_else_is_refused():
    cases = [BenchCase("paddle", 2, 1), BenchCase("pytorch", 2, 1)]
    losses = {"paddle-2x1": [5.0] * WARM_UP + [4.0], "pytorch-2x1": [5.0001] * WARM_UP + [9.0]}
    assert check_losses(losses, cases) == {"pytorch-2x1": pytest.approx(2e-5)}
    losses["pytorch-2x1"][WARM_UP - 1] = 5.001
    with pytest.raises(
        UsageError,
        match=r"^pytorch-2x1: its losses differ from those of paddle-2x1 by up to 0.0002 of",
    ):
        check_losses(losses, cases)
    losses["pytorch-2x1"][0] = float("nan")
    with pytest.raises(UsageError, match="by up to nan of them"):
        check_losses(losses, cases)


def test_keras_is_left_out_where_it_has_no_twin():
    options = BenchOptions(peers=True, replicas=(1, 2))
    of_text = cases_of(preset("language-model", "bench"), options, 2)
    assert [case.label for case in of_text if case.name == "keras"] == [
        "keras-2x1",
        "keras-1x2",
    ]
    assert [case.label for case in of_text if case.name == "paddle"] == [
        f"paddle-{layout}" for layout in ("1x1", "2x1", "1x2")
    ]
    of_pairs = cases_of(preset("seq2seq", "chatbot"), options, 2)
    assert {case.name for case in of_pairs} == {"paddle", "tensorflow", "pytorch"}


def test_the_products_of_a_step_are_those_of_its_real_tokens():
    model = preset("language-model", "bench")
    batch = {"lengths": np.array([3, 0, 2])}
    layers = 2 * (200 + 200) * 800
    assert product_flops(model, batch) == 3 * 2 * 5 * (layers + 200 * 10_000)
    pairs = preset("seq2seq", "tiny-nmt")
    batch = {"lengths": np.array([3, 2]), "source_lengths": np.array([4, 1])}
    encoder = (64 + 128) * 3 * 128 + 128 * 128
    decoder = (64 + 128 + 128) * 3 * 128 + 128 * 128 + 256 * 128 + 128 * 1_000
    attention = 2 * 128 * (3 * 4 + 2 * 1)
    assert product_flops(pairs, batch) == 3 * 2 * (5 * encoder + 5 * decoder + attention)


def test_an_interrupted_benchmark_keeps_whole_rounds_or_what_ended_of_the_first():
    cases = [BenchCase("paddle", 1, 1), BenchCase("paddle", 2, 1)]
    one, two = (case.label for case in cases)

    def ended(of_one, of_two):
        readings = {one: list(of_one), two: list(of_two)}
        summaries = {label: [{} for _ in each] for label, each in readings.items()}
        kept = ended_cases(cases, Measurements(readings, summaries, {}, None))
        assert {label: len(each) for label, each in summaries.items()} == {
            label: len(each) for label, each in readings.items()
        }
        return kept, readings

    assert ended([], []) == ([], {})
    assert ended([5.0], []) == (cases[:1], {one: [5.0]})
    assert ended([5.0, 6.0], [7.0]) == (cases, {one: [5.0], two: [7.0]})


@pytest.mark.thorough
def test_bench_times_both_sides(tmp_path):
    command = [sys.executable, "-m", "parity", "bench", "--preset", "tiny", "--rounds", "1"]
    command += ["--steps", "12", "--replicas", "2", "--vocabulary-size", "300"]
    command += ["--out", str(tmp_path / "bench"), "--cache", str(tmp_path / "cache")]
    command += ["--history", str(tmp_path / "history.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values = json.loads((tmp_path / "bench" / "bench.json").read_text())
    of_pairs = values | {"padding": {"source": 0.125, "target": 0.25}}
    assert " ".join(bench_text(of_pairs).split()).endswith(
        "padding: 12.5% of the source positions and 25.0% of the target positions; tokens/s "
        "counts real target tokens only"
    )
    assert set(values["throughput"]) == {"paddle-2x1", "tensorflow-2x1"}
    assert list(values["product_rates"]) == ["numpy", "paddle", "tensorflow"]
    assert values["checked_steps"] == 2
    assert values["noise"].startswith("noise: ")
    assert done.stderr.count("noise: ") == 1
    for label, speeds in values["readings"].items():
        assert f"{label}: {speeds[0]:,.0f} tokens/s" in done.stderr
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1
    assert values["history"]["since"] is None
    assert {"paddle", "tensorflow", "numpy"} <= set(values["versions"])
    page = (tmp_path / "bench" / "bench.html").read_text()
    for speed in values["throughput"].values():
        assert f">{speed['median']:,.0f}</td>" in page
    assert not (tmp_path / "bench" / "checked" / "paddle-2x1").exists()
    for label in values["throughput"]:
        assert 0 < values["share_of_limit"][label] < 1
        assert values["share_of_step_products"][label] > 0
        assert 1e8 < sum(values["peak_memory"][label]) < 1e10
        assert 0.5 < values["seconds_to_first_step"][label] < 120
    for speed in values["throughput"].values():
        low, high = speed["spread"]
        assert 0 < low <= speed["median"] <= high
    for side in ("paddle", "tensorflow"):
        assert any(line.startswith(side) for line in done.stdout.splitlines())


# how fast the machine multiplies matrices, as every library of a side does it


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
