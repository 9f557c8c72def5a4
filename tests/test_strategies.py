"""Every strategy of both registries, in both networks: all claims on what it trained once.

A strategy that updates synchronously computes what one replica computes; another one keeps
to its schedule, and with a single worker computes that too. What single strategies do besides
stands in tests/test_strategies_special.py and tests/test_strategies_engines.py.
"""

import json
import re
from collections import Counter

import numpy as np
import pytest
from conftest import STEPS, STREAM_BATCHES, TINY, TINY_SEQ2SEQ, chosen

from parity.report.values import found_for
from parity.trace.reader import Trace
from parity.twins.compare.run_comparison import compare_traces
from parity.twins.compare.whole_runs import RecordedSteps, compare_untraced
from parity.twins.spec.asynchronous_schedule import read_schedule
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import TrainSpec
from parity.twins.training.checkpoint import Checkpoint, load_checkpoint
from parity.twins.training.loss_table import read_losses

UPDATES = 24  # of asynchronous workers
EPOCHS = 2  # of a training that is not recorded
SAVED, END = 8, EPOCHS * STREAM_BATCHES  # steps: within the second epoch, and at its end
TEXT = {"optimizer": "adam", "batching": "stream", "num_layers": 1}
PAIRS = TINY_SEQ2SEQ | {"num_layers": 1, "bidirectional": False, "optimizer": "adam"}
# network -> flags, and the number of replicas. 7 rows divide neither by 2 nor by 4; in the
# fifth batch of the text the second of two replicas has no token.
SYNCHRONOUS = {
    "language-model": (TEXT, 2),
    "language-model-float32": (
        {"batching": "sentences", "time": 8, "dtype": "float32", "kernels": "plain"},
        4,
    ),
    "seq2seq": (PAIRS, 2),
}
# network -> flags of several asynchronous workers
ASYNCHRONOUS = {
    "language-model": TEXT | {"replicas": 3, "schedule": 1, "staleness": 3, "steps": UPDATES},
    "seq2seq": TINY_SEQ2SEQ
    | {"num_layers": 1, "loss_per": "row", "beam": 2, "optimizer": "adam"}
    | {"replicas": 2, "schedule": 2, "staleness": 1, "steps": UPDATES // 2},
}
# These have one set of variables, or a part of it in each place: no copies that could differ.
WITHOUT_COPIES = {"towers", "average-gradients", "parameter-server-sync", "layers"}
COPIES_IF_PLAIN = {"parallel-executor", "parallel-do"}  # with plain kernels on a CPU
# A sum of two replicas has no order, and these compute all else as the default strategy.
SAME_BITS = {"data-parallel", "parallel-do"}


def worst(verdict) -> float:
    """Return the largest relative distance of any pair."""
    return max(d.relative for rungs in verdict.pairs.values() for d in rungs.values())


def differing(*traces: Trace) -> list[str]:
    """Return the names of the tensors whose bits differ between two traces.

    Only the distances of copies may be in one of them alone.
    """
    found = []
    for (_, first), (_, second) in zip(*(trace.steps() for trace in traces), strict=True):
        beside = {name.split("/")[0] for name in first.keys() ^ second.keys()}
        assert beside <= {"replicas"}
        both_have = first.keys() & second.keys()
        found += [k for k in both_have if first[k].tobytes() != second[k].tobytes()]
    return found


def trains_all(entry) -> bool:
    """Return whether a strategy trains in float64 with Adam; Paddle's servers do not."""
    return entry.traits.can_train(TrainSpec(dtype="float64", optimizer="adam"))


def layout(framework, entry, replicas, *, two_in_each=False) -> dict:
    """Return flags of a strategy with some replicas, or as many as it can have."""
    traits, given = entry.traits, {"strategy": entry.name, "replicas": replicas}
    if entry.name == FRAMEWORKS[framework].strategies.default:
        given["strategy"] = None
    if traits.devices == "layers":
        given |= {"replicas": min(replicas, 2), "stages": 3, "micro_batches": 2}
    if traits.processes and two_in_each and entry.name != "multi-worker":
        given["processes"] = replicas // 2
    if "ps" in traits.serves:
        given["servers"] = 2
    if not trains_all(entry):
        given |= {"dtype": "float32", "optimizer": "sgd"}
    return given


def exact_layout(framework, entry) -> dict:
    """Return flags with which a strategy trains as one replica: of two, or of one worker."""
    if entry.traits.synchronous:
        return layout(framework, entry, 2)
    return layout(framework, entry, 1) | {"schedule": "1"}


def in_networks(networks, condition, quick) -> list:
    """Return strategies with each network, as parameters; what is not quick is thorough."""
    return [
        pytest.param(
            *each.values,
            network,
            id=f"{each.id}-{network}",
            marks=each.marks
            if quick(*each.values, network)
            else [*each.marks, pytest.mark.thorough],
        )
        for network in networks
        for each in chosen(condition)
        # of what is not a strategy's own, less where an environment is made for it
        if not (each.values[1].environment and network == "language-model-float32")
    ]


@pytest.fixture(scope="module")
def record(trainings):
    """Return a function that records a training, once, and returns its Trace."""

    def run(framework, **given) -> Trace:
        (folder,) = trainings.run([framework], "trace", **given)
        return Trace(folder)

    return run


@pytest.fixture(scope="module")
def train(trainings):
    """Return a function that trains without a record, once, and returns the folder."""

    def run(framework, **given):
        (folder,) = trainings.run(
            [framework], "out", **TEXT | {"steps": None, "epochs": EPOCHS} | given
        )
        return folder

    return run


@pytest.fixture(scope="module")
def whole(train):
    """Return a function that trains a strategy without a stop, saving on the way."""

    def run(framework, entry, **others):
        given = exact_layout(framework, entry) | others
        return train(framework, checkpoint_every=SAVED, **given)

    return run


def assert_copies_equal(trace: Trace, name: str, replicas: int) -> None:
    """Check that the distances of all copies are recorded, where there are any, and zero."""
    fast = trace.side.kernels == "fast"
    alone = WITHOUT_COPIES | (COPIES_IF_PLAIN if fast else set())
    for _, tensors in trace.steps():
        distances = [each for each in tensors if each.startswith("replicas/")]
        held = sum(each.startswith(("weight/", "optimizer/")) for each in tensors)
        assert len(distances) == (0 if name in alone else held)
        assert all(np.array_equal(tensors[each], np.zeros(replicas)) for each in distances)


@pytest.mark.parametrize(
    ("framework", "entry", "network"),
    in_networks(
        SYNCHRONOUS,
        lambda entry: entry.traits.synchronous,
        # float32, plain kernels and several replicas in each process are not a strategy's own
        lambda framework, entry, network: network != "language-model-float32",
    ),
)
def test_it_computes_what_one_replica_and_the_oracle_compute(
    framework, entry, network, record, run_both, pairs
):
    given, replicas = SYNCHRONOUS[network]
    if "network" in given:
        given = given | {"data": pairs}
    how = layout(framework, entry, replicas, two_in_each=replicas == 4)
    replicas = how["replicas"]
    trace = record(framework, **given | how)
    ones = run_both(**given, replicas=1)
    traces = [ones[framework], trace]
    if how["strategy"] is None:  # both frameworks have a default strategy
        traces = [*ones.values(), *run_both(**given, replicas=replicas).values()]
    verdict = compare_traces(traces)
    assert verdict.matches, verdict.mismatches
    assert verdict.steps == STEPS
    if trace.header["spec"]["training"]["dtype"] == "float64":
        assert worst(verdict) < 1e-11
    # every tensor has the lines of code that made it
    names = [*trace.read(0), *trace.read(STEPS - 1)]
    assert [name for name in names if not found_for(name, trace.sources)] == []
    of_code = ("forward", "loss", "grad", "weight", "decode")
    of_code = [name for name in names if name.startswith(of_code)]
    package = {"paddle": "paddle_impl/", "tensorflow": "tf_impl/"}[framework]
    assert all(found_for(name, trace.sources).startswith(package) for name in of_code)
    assert "/layers.py:" in trace.sources["forward/logits"]
    loops = ("(loop_over_time)", "(scan)", "(_stacked)")
    assert not any(each in found_for(name, trace.sources) for each in loops for name in of_code)
    # servers apply updates themselves
    update = r"/strategies/\w+_server\w*\.py:|/optimizers\.py:\d+ \((apply_)?update\)"
    assert re.search(update, found_for("weight/softmax/bias", trace.sources))
    side = trace.side
    assert (side.strategy, side.replicas) == (entry.name, replicas)
    expected = how.get("processes", replicas) if entry.traits.processes else 1
    assert side.processes == expected
    assert side.settings.servers == how.get("servers")
    assert_copies_equal(trace, entry.name, replicas)
    if network == "language-model":
        losses = trace.read(STREAM_BATCHES - 1)["loss/replicas"]
        assert losses[0] > 0 == losses[1], "the second has no token"
    if replicas == 2 and entry.name in SAME_BITS:
        assert differing(record(framework, **given, replicas=2), trace) == []


def test_large_gradients_of_several_processes_have_the_bits_of_one_process(record):
    """From 1 MiB on Paddle sums a gradient where it is, while others are computed."""
    given = TEXT | {"dtype": "float64", "hidden_size": 200}  # a kernel has 1.2 MiB
    traces = [record("paddle", strategy=each, **given) for each in (None, "data-parallel")]
    assert differing(*traces) == []
    assert_copies_equal(traces[1], "data-parallel", 2)


def staleness(trace: Trace) -> Counter:
    """Return how many updates of a trace have each staleness."""
    return Counter(number - int(tensors["schedule/read"]) for number, tensors in trace.steps())


@pytest.mark.parametrize(
    ("framework", "entry", "network"),
    in_networks(
        ASYNCHRONOUS,
        lambda entry: not entry.traits.synchronous,
        # threads and processes compute the same, of either network
        lambda _, entry, network: network == "language-model" or not entry.traits.processes,
    ),
)
def test_workers_keep_to_a_schedule(framework, entry, network, record, run_both, pairs):
    given = ASYNCHRONOUS[network]
    if network == "seq2seq":
        given = given | {"data": pairs}
    how = layout(framework, entry, given["replicas"])
    trace = record(framework, **given | how)
    shared = {name: how[name] for name in ("dtype", "optimizer") if name in how}
    threads = record(framework, **given | shared | {"strategy": "asynchronous"})
    traces = [threads, trace] if entry.traits.processes else run_both(**given | how).values()
    verdict = compare_traces([*traces])
    assert verdict.matches, verdict.mismatches
    assert verdict.steps == given["steps"]
    assert any("oracle" not in pair for pair in verdict.pairs)
    assert all(max(staleness(each)) == given["staleness"] for each in traces)
    norms = [tensors["gradient_norm"] for _, tensors in trace.steps()]
    assert max(norms) > TINY["clip_norm"]
    if trains_all(entry):
        assert worst(verdict) < 1e-11
        assert differing(threads, trace) == []
        return
    assert trace.sources["weight"].endswith("(Servers)")
    # a server rounds the learning rate times the gradient, and the update of one process not
    first, second = threads.read(0), trace.read(0)
    assert first.keys() == second.keys()
    same = [name for name in first if not name.startswith("weight/")]
    assert all(first[name].tobytes() == second[name].tobytes() for name in same)


@pytest.mark.parametrize(
    ("framework", "entry"), chosen(lambda entry: not entry.traits.synchronous)
)
def test_one_worker_computes_what_one_replica_computes(framework, entry, record):
    """To the bit, but for Paddle's servers, which round an update otherwise."""
    given = TEXT | layout(framework, entry, 1)
    alone = record(framework, **given)
    replica = record(framework, **given | {"strategy": None, "servers": None})
    if trains_all(entry):
        for step in range(STEPS):
            ours, theirs = alone.read(step), replica.read(step)
            beside = {name.split("/")[0] for name in ours.keys() ^ theirs.keys()}
            assert beside <= {"read", "schedule", "replicas"}
            both_have = ours.keys() & theirs.keys()
            assert all(ours[name].tobytes() == theirs[name].tobytes() for name in both_have)
    verdict = compare_traces([alone, replica])
    assert verdict.matches, verdict.mismatches
    assert any("oracle" not in pair for pair in verdict.pairs)


@pytest.mark.parametrize(
    ("framework", "entry"),
    # servers keep to a schedule above
    chosen(
        lambda entry: not entry.traits.synchronous, lambda entry: "server" not in entry.name
    ),
)
def test_a_free_run_is_replayed_by_the_oracle(framework, entry, record):
    given = TEXT | layout(framework, entry, 3)
    verdict = compare_traces([record(framework, **given, schedule="free", steps=UPDATES)])
    assert verdict.matches, verdict.mismatches
    if trains_all(entry):
        assert worst(verdict) < 1e-11


@pytest.mark.parametrize(
    ("framework", "entry"),
    # all do it by the same code
    chosen(
        lambda entry: not entry.traits.synchronous,
        lambda entry: entry is FRAMEWORKS["paddle"].strategies.entry("asynchronous"),
    ),
)
def test_a_free_run_is_repeated_by_its_schedule(framework, entry, train):
    given = TEXT | layout(framework, entry, 3)
    free = train(framework, **given)
    again = train(framework, **given, schedule=free / "schedule.jsonl")
    for name in ("losses.csv", "schedule.jsonl"):
        assert (free / name).read_bytes() == (again / name).read_bytes()
    first, updates = read_schedule(free / "schedule.jsonl", 3)
    assert (first, len(updates)) == (0, 3 * END)
    assert len(read_losses(free / "losses.csv")) == END
    summary = json.loads((free / "summary.json").read_text())
    assert len(summary["valid_perplexity"]) == EPOCHS
    assert summary["strategy"] == entry.name


@pytest.mark.parametrize(("framework", "entry"), chosen(lambda entry: True))
def test_a_run_without_a_record_has_the_same_losses_evaluates_and_saves(
    framework, entry, record, whole
):
    """Its checkpoint holds what that of the default strategy does, with any strategy."""
    given = layout(framework, entry, 2 if entry.traits.synchronous else 1)
    trace = record(framework, **TEXT | given)
    steps = RecordedSteps(trace.side, "token")
    for number, tensors in trace.steps():
        steps.add(number, tensors)
    assert len(steps.steps) == STEPS
    folder = whole(framework, entry)
    rows = read_losses(folder / "losses.csv")
    assert len(rows) == END
    assert compare_untraced(framework, steps.steps, rows[:STEPS]) is None
    assert [row[2] for row in rows[:STEPS]] == [each.tokens for each in steps.steps]
    default = FRAMEWORKS[framework].strategies.entry(None)
    trained = {name: given[name] for name in ("dtype", "optimizer") if name in given}
    other = whole(framework, default, **trained)
    found, expected = (
        json.loads((each / "summary.json").read_text()) for each in (folder, other)
    )
    for name in ("valid_perplexity", "test_perplexity"):
        assert found[name] == pytest.approx(expected[name], rel=tolerance(entry))
    assert_near(*(load_checkpoint(newest(each)) for each in (folder, other)), tolerance(entry))


def tolerance(entry) -> float:
    """Return how far what a strategy computes may be from what others compute."""
    return 1e-10 if trains_all(entry) else 1e-4


def assert_near(found: Checkpoint, expected: Checkpoint, rel: float) -> None:
    """Check that two checkpoints hold the same, but for an error of each whole tensor."""
    for ours, theirs in ((found.snapshot, expected.snapshot), (found.state, expected.state)):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            largest = max(np.abs(array).max(), 1e-30)
            assert np.abs(ours[name] - array).max() <= rel * largest, name


def at_end(folder):
    """Return the losses from `SAVED` on, and the checkpoint at the end."""
    losses = {row[0]: row for row in read_losses(folder / "losses.csv") if row[0] >= SAVED}
    (last,) = folder.glob(f"checkpoints/*{END:06d}*")
    return losses, load_checkpoint(last)


def newest(folder):
    """Return the checkpoint of the step `SAVED`."""
    (path,) = folder.glob(f"checkpoints/*{SAVED:06d}*")
    return path


def goes_on_to_the_bit(entry) -> bool:
    """Return whether a strategy goes on from its own checkpoint in the last test."""
    return entry.traits.processes or not entry.traits.synchronous


@pytest.mark.parametrize(
    ("framework", "entry"),
    chosen(
        lambda entry: trains_all(entry) and not entry.environment,
        # a second look at what goes on from its own checkpoint below: all save the same
        lambda entry: not goes_on_to_the_bit(entry),
    ),
)
def test_it_goes_on_from_what_the_other_framework_saved(framework, entry, whole, train):
    (other,) = {*FRAMEWORKS} - {framework}
    unbroken = whole(other, FRAMEWORKS[other].strategies.entry(None))
    resumed = train(framework, **exact_layout(framework, entry), resume=newest(unbroken))
    (losses, last), (expected_losses, expected) = map(at_end, (resumed, unbroken))
    assert losses.keys() == expected_losses.keys() == set(range(SAVED, END))
    for step, row in losses.items():
        assert row[1:] == pytest.approx(expected_losses[step][1:], rel=1e-10)
    assert_near(last, expected, 1e-10)


@pytest.mark.parametrize(("framework", "entry"), chosen(goes_on_to_the_bit))
def test_it_goes_on_to_the_bit_as_one_that_never_stopped(framework, entry, whole, train):
    """With another number of servers, too; Paddle's may be more than there are parameters."""
    unbroken = whole(framework, entry)
    given = exact_layout(framework, entry)
    if "servers" in given:
        given["servers"] = 9 if framework == "paddle" else 1
    resumed = train(framework, **given, resume=newest(unbroken))
    (losses, last), (expected_losses, expected) = map(at_end, (resumed, unbroken))
    assert losses == expected_losses
    assert_near(last, expected, 0.0)
    (found, wanted) = (
        json.loads((each / "summary.json").read_text())["valid_perplexity"]
        for each in (resumed, unbroken)
    )
    assert found[-1] == wanted[-1]
