"""Recurrent layers of Paddle against the oracle's, in float64, with a row of no token."""

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from parity.twins.oracle import recurrent
from parity.twins.spec.parameters import swap_layout

TIME, ROWS, WIDTH, HIDDEN = 5, 4, 3, 6


GATES = {"lstm": 4, "gru": 3}
LENGTHS = {"lengths": [5, 2, 0, 3]}


@dataclass(frozen=True)
class Case:
    """A layer and what it reads.

    Attributes:
      build: called with the module of layers, the inputs and the constants; returns outputs.
      expected: called with inputs, constants, weights and the outputs' gradients, all arrays;
        returns the outputs, and the gradients of inputs and weights by name.
      inputs: name -> shape, of float64.
      weights: name -> shape.
      constants: name -> int64 values.
    """

    build: Callable
    expected: Callable
    inputs: dict
    weights: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)

    def draw(self, what: str, shapes: dict) -> dict[str, np.ndarray]:
        """Draw arrays, the same in every process."""
        seed = zlib.crc32(repr((what, list(shapes.items()))).encode())
        generator = np.random.default_rng(seed)
        return {name: generator.normal(size=shape) * 0.8 for name, shape in shapes.items()}

    def ints(self) -> dict[str, np.ndarray]:
        """Return the constants as arrays."""
        return {name: np.array(values, np.int64) for name, values in self.constants.items()}


def layer_weights(name: str, cell: str, inputs: int, hidden: int) -> dict:
    gates = GATES[cell] * hidden
    return {
        f"{name}/input_kernel": (inputs, gates),
        f"{name}/recurrent_kernel": (hidden, gates),
        f"{name}/bias": (gates,),
    }


def turn(array: np.ndarray) -> np.ndarray:
    """Swap time and rows."""
    return np.swapaxes(array, 0, 1)


# One layer of a recurrent cell.


def recurrent_case(cell: str) -> Case:
    state = (
        {"h": (ROWS, HIDDEN), "c": (ROWS, HIDDEN)} if cell == "lstm" else {"h": (ROWS, HIDDEN)}
    )

    def build(layers, inputs, lengths, **state):
        hidden, last = layers.recurrent(
            inputs, lengths, tuple(state.values()), "layer", cell, HIDDEN
        )
        return [hidden, *last]

    def expected(inputs, constants, weights, d_outputs):
        x, *state = inputs.values()
        return run_layer(
            cell, "layer", x, constants["lengths"], state, weights, d_outputs, inputs
        )

    return Case(
        build,
        expected,
        {"inputs": (TIME, ROWS, WIDTH), **state},
        layer_weights("layer", cell, WIDTH, HIDDEN),
        LENGTHS,
    )


def run_layer(cell, name, x, lengths, state, weights, d_outputs, inputs):
    x, real = turn(x), np.arange(TIME) < lengths[:, None]
    w, u, b = (
        weights[f"{name}/{part}"] for part in ("input_kernel", "recurrent_kernel", "bias")
    )
    hidden, last, saved = recurrent.rnn_forward(cell, x, real, tuple(state), w, u, b)
    d_x, d_w, d_u, d_b, d_state = recurrent.rnn_backward(
        cell, turn(d_outputs[0]), tuple(d_outputs[1:]), x, real, saved, w, u
    )
    gradients = dict(zip(inputs, (turn(d_x), *d_state), strict=True)) | {
        f"{name}/input_kernel": d_w,
        f"{name}/recurrent_kernel": d_u,
        f"{name}/bias": d_b,
    }
    return [turn(hidden), *last], gradients


CASES = {cell: recurrent_case(cell) for cell in GATES}


def d_outputs_of(case: Case, outputs) -> list[np.ndarray]:
    shapes = {str(k): np.shape(output) for k, output in enumerate(outputs)}
    return list(case.draw("d_outputs", shapes).values())


# What follows up to the next rule runs in a process of the framework.


def _looped_lstm() -> list:
    """Return what Paddle's LSTM computes as the loop that a large one is on one thread."""
    import os

    from paddle_impl import kernels

    assert os.environ["OMP_NUM_THREADS"] == "1"
    kernels._LOOP_FROM, usual = HIDDEN, kernels._LOOP_FROM
    try:
        return [_lists(part) for part in _paddle(CASES["lstm"], "fast")]
    finally:
        kernels._LOOP_FROM = usual


def _every_layer(side: str):
    modules = [importlib.import_module(f"{side}.{name}") for name in ("layers", "attention")]
    return SimpleNamespace(
        **{name: each for module in modules for name, each in vars(module).items()}
    )


def _lists(arrays):
    if isinstance(arrays, dict):
        return {name: np.asarray(array).tolist() for name, array in arrays.items()}
    return [np.asarray(array).tolist() for array in arrays]


def _paddle(case: Case, kernels: str):
    import paddle

    from paddle_impl.kernels import use_kernels

    inputs, weights = case.draw("inputs", case.inputs), case.draw("weights", case.weights)
    program, startup = paddle.static.Program(), paddle.static.Program()
    with use_kernels(kernels), paddle.static.program_guard(program, startup):
        read = {}
        for name, array in (inputs | case.ints()).items():
            shape = [-1] * (array.ndim - 1) + [array.shape[-1] if array.ndim > 1 else -1]
            read[name] = paddle.static.data(name, shape, str(array.dtype))
            read[name].stop_gradient = name not in inputs
        outputs = case.build(_every_layer("paddle_impl"), **read)
        scope = paddle.static.Scope()
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            for name, array in weights.items():
                array = np.ascontiguousarray(swap_layout("paddle", name, array))
                scope.var(name).get_tensor().set(array, paddle.CPUPlace())
            feed = inputs | case.ints()
            values = executor.run(program, feed, outputs)
            d_outputs = d_outputs_of(case, values)
            # a sum is what a gradient is taken of: the engine knows no output's whole shape
            seeds = [
                paddle.static.data(f"seed_{k}", [-1] * each.ndim, "float64")
                for k, each in enumerate(d_outputs)
            ]
            feed |= {seed.name: array for seed, array in zip(seeds, d_outputs, strict=True)}
            total = paddle.add_n(
                [paddle.sum(each * seed) for each, seed in zip(outputs, seeds, strict=True)]
            )
            sources = [read[name] for name in inputs]
            sources += [program.global_block().var(name) for name in weights]
            gradients = paddle.static.gradients([total], sources)
            found = dict(
                zip([*inputs, *weights], executor.run(program, feed, gradients), strict=True)
            )
    return values, {name: swap_layout("paddle", name, each) for name, each in found.items()}


# -----------------------------------------------------------------------------------------


def test_looped_lstm_is_the_oracles(frameworks):
    outputs, gradients = frameworks["paddle"].call(_looped_lstm)
    _check(CASES["lstm"], outputs, gradients)
    hidden, *last = outputs
    beyond = np.arange(TIME)[:, None] >= LENGTHS["lengths"]
    assert not np.any(np.array(hidden)[beyond])
    inputs = CASES["lstm"].draw("inputs", CASES["lstm"].inputs)
    for name, state in zip(("h", "c"), last, strict=True):
        assert np.array_equal(state[2], inputs[name][2]), "a row of no token"


def _check(case: Case, outputs, gradients):
    """Compare outputs and gradients with the oracle's."""
    inputs, weights = case.draw("inputs", case.inputs), case.draw("weights", case.weights)
    wanted, wanted_gradients = case.expected(
        inputs, case.ints(), weights, d_outputs_of(case, outputs)
    )
    for one, other in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(np.reshape(one, other.shape), other, rtol=1e-12, atol=1e-13)
    assert set(gradients) == set(wanted_gradients)
    for source, gradient in gradients.items():
        other = wanted_gradients[source]
        np.testing.assert_allclose(gradient, other, rtol=1e-12, atol=1e-13, err_msg=source)


@pytest.mark.parametrize("cell", GATES)
def test_last_state_may_be_read_after_the_gradient(frameworks, cell):
    """An engine of several threads may read the last state as late as it likes."""
    in_order, late = frameworks["paddle"].call(_last_states, cell)
    np.testing.assert_array_equal(late, in_order)


def _last_states(cell: str):
    """Return the last states of a layer in Paddle, read where the layer reads them, and read
    again at the end of the program, after the gradient of the layer's loop."""
    import paddle

    from paddle_impl.kernels import use_kernels

    case = CASES[cell]
    inputs, weights = case.draw("inputs", case.inputs), case.draw("weights", case.weights)
    program, startup = paddle.static.Program(), paddle.static.Program()
    with use_kernels("plain"), paddle.static.program_guard(program, startup):
        read = {
            name: paddle.static.data(name, array.shape, str(array.dtype))
            for name, array in (inputs | case.ints()).items()
        }
        hidden, *last = case.build(_every_layer("paddle_impl"), **read)
        paddle.static.append_backward(paddle.sum(hidden))
        block = program.global_block()
        again = []
        for state in last:
            (reader,) = (op for op in block.ops if state.name in op.output_arg_names)
            copy = block.create_var(name=f"{state.name}_late", dtype=state.dtype)
            block.append_op(
                type=reader.type,
                inputs={name: reader.input(name) for name in reader.input_names},
                outputs={"Out": copy},
            )
            again.append(copy)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor.run(startup)
        for name, array in weights.items():
            array = np.ascontiguousarray(swap_layout("paddle", name, array))
            paddle.static.global_scope().var(name).get_tensor().set(array, paddle.CPUPlace())
        values = executor.run(program, inputs | case.ints(), [*last, *again])
    return _lists(values[: len(last)]), _lists(values[len(last) :])
