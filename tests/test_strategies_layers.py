"""The strategy `layers`: where layers are cut, and which device has which."""

from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from conftest import wait_for
from oracle_side import OracleStrategy, TextBatch

from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.initial import zero_state
from parity.twins.spec.spec import preset
from parity.twins.spec.stages import layers_of, stages_of
from parity.twins.spec.step_arrays import step_inputs
from parity.twins.spec.strategies import StrategySettings
from parity.twins.training.strategy import Build

SPEC = preset("language-model", "tiny").replace(
    vocabulary_size=12,
    embedding_size=3,
    hidden_size=4,
    num_layers=3,
    batch_size=7,
    time=5,
    dtype="float64",
)

PAIRS_SPEC = preset("seq2seq", "tiny").replace(
    source_vocabulary_size=12,
    target_vocabulary_size=13,
    embedding_size=3,
    hidden_size=4,
    num_layers=2,
    dtype="float64",
)


def two_steps(strategy) -> list[dict]:
    """Train two steps; return the losses of each and its state, which goes on into the next."""
    draw, state, found = np.random.default_rng(0), zero_state(SPEC, 7), []
    for step in range(2):
        tokens, targets = draw.integers(0, 12, (2, 7, 5))
        batch = TextBatch(tokens, targets, np.full(7, 5), carry=step > 0)
        result = strategy.step(step_inputs(SPEC, step, batch), state, 0.1)
        state = result.state
        found.append({"loss": result.losses.tolist()} | {n: state[n].tolist() for n in state})
    return found


def assert_the_oracles(found: list[dict]) -> None:
    """Check what `two_steps` returned of two replicas."""
    for ours, exact in zip(found, two_steps(OracleStrategy(SPEC, Build(2))), strict=True):
        assert ours.keys() == exact.keys()
        for name, values in exact.items():
            np.testing.assert_allclose(ours[name], values, rtol=1e-11, atol=1e-13)


# What follows up to the next rule runs in a process of the framework.


def _devices(replicas: int, stages: int, micro_batches: int) -> dict:
    """Return where variables, their reads and each layer's loops are, and what ran where."""
    build = Build(replicas, settings=StrategySettings(stages, micro_batches))
    strategy = FRAMEWORKS["tensorflow"].strategies.make("layers", SPEC, build)
    operations = strategy._graph.get_operations()
    with strategy.profile() as events:
        steps = two_steps(strategy)
    return {
        "steps": steps,
        "variables": {
            each.name: each.device for each in operations if each.type == "VarHandleOp"
        },
        "loops": [
            [each.name, each.device] for each in operations if each.type == "StatelessWhile"
        ],
        "ran": sorted({event.thread for event in events if "while" in event.name}),
    }


def _cut(network: str, stages: int) -> list[dict]:
    """Return what each of Paddle's stages has and exchanges, by the names of parameters."""
    spec = SPEC if network == "language-model" else PAIRS_SPEC
    build = Build(1, settings=StrategySettings(stages, 1))
    strategy = FRAMEWORKS["paddle"].strategies.make("layers", spec, build)
    return [
        {
            "parameters": [
                each.name for each in strategy._train.program(0, 0, stage).all_parameters()
            ],
            "gradients": [each.removesuffix("@GRAD") for each in found.gradients],
            "data": found.data,
            "exchanged": [
                len(each)
                for each in (found.reads, found.awaits, found.hands_over, found.returns)
            ],
        }
        for stage, found in enumerate(strategy._train.stages)
    ]


def _runs_again() -> dict:
    """Return two runs, whether they have the same bits, and what a step does that fails."""
    build = Build(2, settings=StrategySettings(2, 2))
    draw = np.random.default_rng(0)
    tokens, targets = draw.integers(0, 12, (2, 7, 5))
    inputs = step_inputs(SPEC, 0, TextBatch(tokens, targets, np.full(7, 5), carry=False))
    runs, steps = [], []
    for _ in range(2):
        strategy = FRAMEWORKS["paddle"].strategies.make("layers", SPEC, build)
        steps.append(two_steps(strategy))
        runs.append(strategy.snapshot())
    said, wrong = [], TextBatch(tokens + 100, targets, np.full(7, 5), carry=False)
    narrow = {"lstm_2": inputs.masks["lstm_2"][:, :, :3]}
    # the first fails in the first stage, the second in the last, for which the first waits
    for failing in (
        step_inputs(SPEC, 0, wrong),
        replace(inputs, masks={**inputs.masks, **narrow}),
    ):
        try:
            strategy.step(failing, zero_state(SPEC, 7), 0.1)
        except ValueError as error:
            said.append(str(error))
    first, second = runs
    return {
        "steps": steps,
        "same": all(np.array_equal(first[name], second[name]) for name in first),
        "said": said,
        "goes on": strategy.step(inputs, zero_state(SPEC, 7), 0.1).loss,
    }


def _turns() -> list[str]:
    """Return the order in which passes get a device that is busy when they ask for it."""
    from paddle_impl.strategies.pipeline import Exchange

    exchange, device, order, threads = Exchange(), (0, 0), [], []
    exchange.take(device, "forward", 0)

    def take(direction: str, micro_batch: int) -> None:
        exchange.take(device, direction, micro_batch)
        order.append(f"{direction} {micro_batch}")
        exchange.give_back(device)

    for number, turn in enumerate([("forward", 2), ("forward", 1), ("backward", 0)]):
        threads.append(Thread(target=take, args=turn))
        threads[-1].start()
        wait_for(lambda wanted=number + 1: exchange.waiting == wanted)
    exchange.give_back(device)
    for thread in threads:
        thread.join()
    return order


# ------------------------------------------------------------------------------------------


def test_each_layer_of_tensorflow_runs_on_its_stages_device(frameworks):
    replicas = micro_batches = 2
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
    assert_the_oracles(found["steps"])


@pytest.mark.parametrize("network", ["language-model", "seq2seq"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_paddles_programs_are_cut_between_layers(frameworks, network, stages):
    """Each has the parameters of its own layers, and is fed the data that it reads."""
    spec = SPEC if network == "language-model" else PAIRS_SPEC
    found = frameworks["paddle"].call(_cut, network, stages)
    parameters = layers_of(spec)
    for layers, stage in zip(stages_of(spec, stages), found, strict=True):
        own = {parameter for layer in layers for parameter in parameters[layer]}
        assert set(stage["parameters"]) == own
        assert set(stage["gradients"]) == own
    if network == "language-model" and stages == 2:
        # an activation, its gradient, and both states of two layers for the result of the step
        assert found[0]["exchanged"] == [0, 1, 1 + 2 * 2, 0]
        assert found[1]["exchanged"] == [1 + 2 * 2, 0, 0, 1]
        assert set(found[1]["data"]) == {"targets", "lengths", "h", "c", "scale"} | {
            "mask/lstm_2"
        }


def test_paddles_stages_add_up_in_order_and_go_on_after_an_error(frameworks):
    found = frameworks["paddle"].call(_runs_again)
    assert found["same"]
    assert found["steps"][0] == found["steps"][1]
    assert_the_oracles(found["steps"][0])
    first, last = found["said"]
    assert "lookup_table_v2 > error" in first
    assert "elementwise_mul > error" in last
    assert np.isfinite(found["goes on"])


def test_paddles_stages_compute_in_order_and_backward_first(frameworks):
    assert frameworks["paddle"].call(_turns) == ["backward 0", "forward 1", "forward 2"]
