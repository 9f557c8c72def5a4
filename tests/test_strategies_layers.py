"""TensorFlow's `layers`: stages and micro-batches change no number, and stages have devices."""

import numpy as np
import pytest
from conftest import STEPS, assert_one_line, flags
from oracle_side import TextBatch

from parity.compare.ladder import climb
from parity.launch.edited_source import Edit
from parity.spec.frameworks import FRAMEWORKS
from parity.spec.initial import zero_state
from parity.spec.presets import preset
from parity.spec.stages import stages_of
from parity.spec.step_arrays import step_inputs
from parity.spec.strategies import StrategySettings
from parity.trace.reader import Trace
from parity.training.strategy import Build

STREAM = {"optimizer": "adam", "batching": "stream"}
PAIRS = {
    "network": "seq2seq",
    "time": None,
    "vocabulary_size": None,
    "source_vocabulary_size": 40,
    "target_vocabulary_size": 40,
    "num_layers": 2,
    "bidirectional": True,
    "optimizer": "adam",
    "initial_scale": 0.3,
    "source_segmenter": "spaces",
    "target_segmenter": "spaces",
    "decode": 2,
}
SPEC = preset("language-model", "tiny").replace(
    vocabulary_size=12,
    embedding_size=3,
    hidden_size=4,
    num_layers=3,
    batch_size=7,
    time=5,
    dtype="float64",
)


@pytest.fixture
def layered(frameworks, text, cache, tmp_path):
    """Return a function that records TensorFlow's `layers` and returns the Trace."""

    def run(stages, micro_batches, replicas=1, edits=(), **given) -> Trace:
        folder = tmp_path / f"{replicas} {stages} {micro_batches}"
        values = {"steps": STEPS, "dtype": "float64", "data": text, "cache": cache} | given
        values |= {"strategy": "layers", "stages": stages, "micro_batches": micro_batches}
        words = flags(replicas=replicas, **values)
        job = frameworks["tensorflow"].train(*words, f"--trace={folder}", edits=edits)
        status, _, errors = job.wait()
        assert status == 0, errors
        return Trace(folder)

    return run


def assert_equal(towers: Trace, *traces: Trace) -> None:
    """Compare traces of as many replicas with the towers and the oracle, on every rung."""
    verdict = climb([towers, *traces])
    assert verdict.matches, verdict.mismatches
    assert verdict.steps == STEPS
    assert len(verdict.pairs) >= len(traces)
    for pair in verdict.pairs.values():
        assert max(distance.relative for distance in pair.values()) < 1e-11


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_stages_and_micro_batches_change_no_number(run_both, layered, kernels):
    """Of 7 rows, 4 micro-batches have 2, 2, 2 and 1; in a fifth batch some have no token."""
    given = STREAM if kernels == "fast" else {**STREAM, "kernels": kernels}
    towers = run_both(replicas=1, **given)["tensorflow"]
    layouts = [(2, 2), (3, 1), (4, 4)] if kernels == "fast" else [(3, 4)]
    traces = [layered(*layout, **given) for layout in layouts]
    assert_equal(towers, *traces)
    assert climb([towers, traces[-1]]).pairs.popitem()[1]["gradient"].relative > 0


def test_replicas_of_stages_change_no_number(run_both, layered):
    """2 x 2 devices; and 3 replicas of 4 micro-batches, of which some have no row."""
    towers = run_both(replicas=2, **STREAM)["tensorflow"]
    hybrid = layered(2, 2, replicas=2, **STREAM)
    assert_equal(towers, hybrid)
    for step in range(STEPS):
        of_replicas = [trace.read(step)["loss/replicas"] for trace in (towers, hybrid)]
        np.testing.assert_allclose(*of_replicas, rtol=1e-11)
    towers = run_both(replicas=3, **STREAM)["tensorflow"]
    assert_equal(towers, layered(2, 4, replicas=3, **STREAM))


@pytest.mark.parametrize("fed", [False, True])
def test_an_encoder_and_a_decoder_on_stages_change_no_number(run_both, layered, pairs, fed):
    """Isolated too: each layer is fed the oracle's activations, on its own device."""
    given = {**PAIRS, "data": pairs, "isolate": True}
    if fed:
        given |= {"cell": "gru", "attention": "bahdanau", "input_feeding": True}
    towers = run_both(replicas=1, **given)["tensorflow"]
    assert_equal(towers, layered(4, 2, **given))
    towers = run_both(replicas=2, **given)["tensorflow"]
    assert_equal(towers, layered(3, 2, replicas=2, **given))


def test_a_checkpoint_of_stages_goes_on_in_towers(run_both, frameworks, text, cache, tmp_path):
    """The last three steps of the resumed run are those of a run that never stopped."""
    common = {"dtype": "float64", "data": text, "cache": cache, "out": tmp_path / "run"}
    common |= STREAM
    first = {"strategy": "layers", "stages": 3, "micro_batches": 2, "steps": 4}
    then = {"strategy": "towers", "replicas": 2, "steps": STEPS, "resume": True}
    then |= {"trace": tmp_path / "trace"}
    for values in (first, then):
        status, _, errors = frameworks["tensorflow"].train(*flags(**common, **values)).wait()
        assert status == 0, errors
    resumed = Trace(tmp_path / "trace")
    whole = run_both(replicas=2, **STREAM)["tensorflow"]
    for step in range(4, STEPS):
        for name, array in resumed.read(step).items():
            np.testing.assert_allclose(array, whole.read(step)[name], rtol=1e-9, atol=1e-12)


def test_more_stages_than_layers_are_refused(frameworks, text, cache):
    words = flags(strategy="layers", stages=9, data=text, cache=cache)
    status, _, errors = frameworks["tensorflow"].train(*words).wait()
    line = assert_one_line(status, errors)
    assert line == "error: --stages is 9; allowed: 1 to 4, the layers of this network"


def test_a_micro_batch_that_counts_twice_is_found(run_both, layered):
    twice = Edit(
        "tf_impl/strategies/layers.py",
        "return summed_gradients(losses, parameters)",
        "return summed_gradients([*losses, losses[-1]], parameters)",
    )
    towers = run_both(replicas=1, **STREAM)["tensorflow"]
    verdict = climb([towers, layered(2, 2, edits=[twice], **STREAM)])
    assert verdict.mismatches[0].rung == "gradient"


# What follows up to the next rule runs in a process of the framework.


def _devices(replicas: int, stages: int, micro_batches: int) -> dict:
    """Return where variables, their reads and each layer's loops are, and what ran where."""
    build = Build(replicas, settings=StrategySettings(stages, micro_batches))
    strategy = FRAMEWORKS["tensorflow"].strategies.make("layers", SPEC, build)
    operations = strategy._graph.get_operations()
    draw = np.random.default_rng(0)
    tokens, targets = draw.integers(0, 12, (2, 7, 5))
    batch = TextBatch(tokens, targets, np.full(7, 5), carry=False)
    with strategy.profile() as events:
        strategy.step(step_inputs(SPEC, 0, batch), zero_state(SPEC, 7), 0.1, record=True)
    return {
        "variables": {
            each.name: each.device for each in operations if each.type == "VarHandleOp"
        },
        "loops": [
            [each.name, each.device] for each in operations if each.type == "StatelessWhile"
        ],
        "ran": sorted({event.thread for event in events if "while" in event.name}),
    }


# ------------------------------------------------------------------------------------------


def test_each_layer_runs_on_its_stages_device(frameworks):
    replicas, micro_batches = 2, 3
    found = frameworks["tensorflow"].call(_devices, replicas, 3, micro_batches)
    stages = stages_of(SPEC, 3)
    assert stages == [["embed", "lstm_0"], ["lstm_1"], ["lstm_2", "softmax"]]
    for stage, layers in enumerate(stages):
        for layer in layers:
            devices = {d for n, d in found["variables"].items() if n.startswith(f"{layer}/")}
            assert devices == {f"/cpu:{stage}"}
    for replica in range(replicas):
        for micro_batch in range(micro_batches):
            tower = f"replica_{replica}/micro_batch_{micro_batch}/"
            own = [f"/cpu:{3 * replica + stage}" for stage in range(3)]
            forward = [d for name, d in found["loops"] if name.startswith(tower)]
            backward = [d for name, d in found["loops"] if f"gradients/{tower}" in name]
            assert forward == own
            assert backward == own[::-1]
    assert found["ran"] == [f"CPU:{device}" for device in range(6)]
