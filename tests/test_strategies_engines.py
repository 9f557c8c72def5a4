"""What the default strategies rest on: Paddle's engine, and TensorFlow's towers."""

import gc
import subprocess
import sys

import numpy as np
import pytest
from oracle_side import TextBatch

from parity.twins.launch.processes import ROOT
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.initial import zero_state
from parity.twins.spec.spec import preset
from parity.twins.spec.step_arrays import StepInputs, split_feeds, step_inputs
from parity.twins.training.strategy import Build

SPEC = preset("language-model", "tiny").replace(
    vocabulary_size=12,
    embedding_size=3,
    hidden_size=4,
    batch_size=7,
    time=5,
    dtype="float64",
    keep=0.7,
    clip_norm=0.1,
)


# What follows up to the next rule runs in a process of the framework.


def _inputs(step: int = 0, rows: int = 7) -> StepInputs:
    draw = np.random.default_rng(step)
    tokens, targets = draw.integers(0, 12, (2, rows, 5))
    lengths = draw.integers(1, 6, rows)
    return step_inputs(SPEC, step, TextBatch(tokens, targets, lengths, carry=False))


def _strategy(framework: str, replicas: int, name: str | None = None):
    return FRAMEWORKS[framework].strategies.make(name, SPEC, Build(replicas))


def _steps(strategy, count: int) -> list[float]:
    state = zero_state(SPEC, 7)
    return [strategy.step(_inputs(step), state, 0.05).loss for step in range(count)]


def _survives_collection() -> bool:
    import paddle

    from paddle_impl.executor import ParallelExecutor

    strategy = _strategy("paddle", 2)
    alone = ParallelExecutor(
        strategy._outputs.loss.block.program,
        strategy._outputs.loss.name,
        [paddle.CPUPlace()],
        strategy._scope,
    )
    holds_graph = isinstance(alone._graph, paddle.base.core.Graph)
    gc.collect()
    waste = [bytes(1 << 20) for _ in range(50)]  # reuses what was freed
    _steps(strategy, 2)
    (feed,) = split_feeds(SPEC, _inputs(), zero_state(SPEC, 7), 1)
    ((loss,),) = alone.run([strategy._outputs.loss.name], [feed])
    return holds_graph and bool(np.isfinite(loss).all()) and len(waste) == 50


def _forward_passes_before_the_update(alone: int) -> list[bool]:
    """Return which towers' losses come before the update, if the gradient has one tower's."""
    from tf_impl.strategies.towers import Towers, summed_gradients

    class Mistaken(Towers):
        def _combine(self, losses, parameters, shares):
            return summed_gradients([losses[alone]], parameters)

    entry = FRAMEWORKS["tensorflow"].strategies.entry("towers")
    strategy = Mistaken(SPEC, Build(3), entry)
    before, found = [strategy._update], set()
    while before:
        operation = before.pop()
        if operation not in found:
            found.add(operation)
            before += [*(each.op for each in operation.inputs), *operation.control_inputs]
    return [outputs.loss.op in found for outputs in strategy._outputs]


def _versions(framework: str) -> list[dict[str, str]]:
    """Return what decides about results, on a processor and on a GPU."""
    load = FRAMEWORKS[framework].load
    processor = load("engine:versions")()
    load("engine:load_engine")(1, "gpu")
    return [processor, load("engine:versions")()]


# ------------------------------------------------------------------------------------------


def test_paddles_graph_lives_as_long_as_its_engine(frameworks):
    assert frameworks["paddle"].call(_survives_collection)


def test_every_tower_reads_the_weights_before_they_change(frameworks):
    """Even those that a mistake leaves out of the gradient: the mistake is in that alone."""
    found = frameworks["tensorflow"].call(_forward_passes_before_the_update, 1)
    assert found == [True, True, True]


@pytest.mark.parametrize(
    "loading",
    [
        "from paddle_impl.engine import load_engine; load_engine(1)",
        "import parity.paddle, paddle",
    ],
)
def test_what_unpacks_after_paddle_was_loaded_lives(loading):
    """Paddle's library exports zlib's functions; bound to those, Python ends with signal 11."""
    code = f"{loading}; import zlib; zlib.decompress(zlib.compress(b'aa')); import numpy.random"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_gpus_round_to_float32_and_repeat_their_sums(framework):
    processor, gpu = framework.call(_versions, framework.framework)
    assert gpu == processor | {
        "NVIDIA_TF32_OVERRIDE": "0",
        "FLAGS_cudnn_deterministic": "1",
        "TF_DETERMINISTIC_OPS": "1",
    }
