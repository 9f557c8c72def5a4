"""Paddle's recurrent layers: a large LSTM's loop, and last states that are read late."""

import numpy as np
import pytest

from parity.twins.spec.parameters import swap_layout

TIME, ROWS, WIDTH, HIDDEN = 5, 4, 3, 6
LENGTHS = np.array([5, 2, 0, 3])
STATES = {"lstm": ("h", "c"), "gru": ("h",)}
GATES = {"lstm": 4, "gru": 3}


def arrays_of(cell: str) -> tuple[dict, dict]:
    """Draw what a layer reads and its weights, the same in every process."""
    gates = GATES[cell] * HIDDEN
    inputs = {"inputs": (TIME, ROWS, WIDTH)} | dict.fromkeys(STATES[cell], (ROWS, HIDDEN))
    weights = {
        "layer/input_kernel": (WIDTH, gates),
        "layer/recurrent_kernel": (HIDDEN, gates),
        "layer/bias": (gates,),
    }
    draw = np.random.default_rng(5)
    return tuple(
        {name: draw.normal(size=shape) * 0.8 for name, shape in shapes.items()}
        for shapes in (inputs, weights)
    )


# What follows up to the next rule runs in a process of Paddle.


def _layer(cell: str):
    """Return what a layer reads, by name, and its outputs: hidden, then the last states."""
    import paddle

    from paddle_impl.layers import recurrent

    inputs, _ = arrays_of(cell)
    read = {
        name: paddle.static.data(name, array.shape, str(array.dtype))
        for name, array in (inputs | {"lengths": LENGTHS}).items()
    }
    for name in inputs:
        read[name].stop_gradient = False
    state = tuple(read[name] for name in STATES[cell])
    hidden, last = recurrent(read["inputs"], read["lengths"], state, "layer", cell, HIDDEN)
    return read, [hidden, *last]


def _run(cell: str, program, startup, fetched) -> list:
    """Run a program with the drawn weights; return what is fetched as lists."""
    import paddle

    inputs, weights = arrays_of(cell)
    executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        executor.run(startup)
        for name, array in weights.items():
            array = np.ascontiguousarray(swap_layout("paddle", name, array))
            scope.var(name).get_tensor().set(array, paddle.CPUPlace())
        values = executor.run(program, inputs | {"lengths": LENGTHS}, fetched)
    return [np.asarray(value).tolist() for value in values]


def _lstms() -> list[list]:
    """Return outputs and gradients of an LSTM: one operator, then the loop of a large one."""
    import os

    import paddle

    from paddle_impl import kernels

    assert os.environ["OMP_NUM_THREADS"] == "1"
    found, usual = [], kernels._LOOP_FROM
    for kernels._LOOP_FROM in (usual, HIDDEN):
        program, startup = paddle.static.Program(), paddle.static.Program()
        with kernels.use_kernels("fast"), paddle.static.program_guard(program, startup):
            read, outputs = _layer("lstm")
            # every element with a gradient of its own
            total = paddle.add_n([paddle.sum(paddle.sin(each)) for each in outputs])
            _, weights = arrays_of("lstm")
            sources = [read[name] for name in ("inputs", *STATES["lstm"])]
            sources += [program.global_block().var(name) for name in weights]
            gradients = paddle.static.gradients([total], sources)
            loops = [op.type for op in program.global_block().ops if op.type == "while"]
            found.append([bool(loops), _run("lstm", program, startup, [*outputs, *gradients])])
    kernels._LOOP_FROM = usual
    return found


def _last_states(cell: str):
    """Return the last states of a layer, read where the layer reads them, and read again at
    the end of the program, after the gradient of the layer's loop."""
    import paddle

    from paddle_impl.kernels import use_kernels

    program, startup = paddle.static.Program(), paddle.static.Program()
    with use_kernels("plain"), paddle.static.program_guard(program, startup):
        _, (hidden, *last) = _layer(cell)
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
    values = _run(cell, program, startup, [*last, *again])
    return values[: len(last)], values[len(last) :]


# -----------------------------------------------------------------------------------------


def test_a_large_lstms_loop_is_the_operator(frameworks):
    """The operator is compared with the oracle in whole networks, row of no token included."""
    (of_operator, operator), (of_loop, loop) = frameworks["paddle"].call(_lstms)
    assert (of_operator, of_loop) == (False, True)
    for one, other in zip(loop, operator, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    hidden, *last = loop[:3]
    assert not np.any(np.array(hidden)[np.arange(TIME)[:, None] >= LENGTHS])
    for name, state in zip(STATES["lstm"], last, strict=True):
        assert np.array_equal(state[2], arrays_of("lstm")[0][name][2]), "a row of no token"


@pytest.mark.parametrize("cell", STATES)
def test_last_state_may_be_read_after_the_gradient(frameworks, cell):
    """An engine of several threads may read the last state as late as it likes."""
    in_order, late = frameworks["paddle"].call(_last_states, cell)
    np.testing.assert_array_equal(late, in_order)
