"""Each layer of both frameworks against the oracle's, forward and backward, in float64."""

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import FRAMEWORKS

from parity.twins.oracle import attention, recurrent
from parity.twins.oracle import layers as oracle
from parity.twins.spec.networks.seq2seq import Seq2seqSpec
from parity.twins.spec.parameters import swap_layout

TIME, ROWS, WIDTH, HIDDEN, TOKENS = 5, 4, 3, 6, 7
KERNELS = ("plain", "fast")
KINDS = ("dot", "general", "scaled", "bahdanau")
GATES = {"lstm": 4, "gru": 3}
LENGTHS = {"lengths": [5, 2, 0, 3]}
MEMORY_LENGTHS = {"lengths": [1, 4, 2, 3]}


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
      trained: outputs that a gradient comes back to, the first ones; None is all.
    """

    build: Callable
    expected: Callable
    inputs: dict
    weights: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    trained: int | None = None

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


def bidirectional_case(cell: str) -> Case:
    half = HIDDEN // 2

    def build(layers, inputs, lengths):
        hidden, last = layers.bidirectional(inputs, lengths, "layer", cell, HIDDEN)
        return [hidden, *last]

    def expected(inputs, constants, weights, d_outputs):
        lengths, names = constants["lengths"], ("inputs", "h", "c")[: len(d_outputs)]
        zeros = [np.zeros((ROWS, half))] * (len(d_outputs) - 1)
        flip = lambda x: turn(oracle.reverse_rows(turn(x), lengths))  # noqa: E731
        ahead, found = run_layer(
            cell,
            "layer/forward",
            inputs["inputs"],
            lengths,
            zeros,
            weights,
            [each[..., :half] for each in d_outputs],
            names,
        )
        d_hidden, *d_last = (each[..., half:] for each in d_outputs)
        back, found_back = run_layer(
            cell,
            "layer/backward",
            flip(inputs["inputs"]),
            lengths,
            zeros,
            weights,
            [flip(d_hidden), *d_last],
            names,
        )
        back[0] = flip(back[0])
        d_inputs = found["inputs"] + flip(found_back["inputs"])
        gradients = found | found_back | {"inputs": d_inputs}
        outputs = [np.concatenate(each, axis=-1) for each in zip(ahead, back, strict=True)]
        return outputs, {name: gradients[name] for name in ["inputs", *weights]}

    weights = layer_weights("layer/forward", cell, WIDTH, half)
    weights |= layer_weights("layer/backward", cell, WIDTH, half)
    return Case(build, expected, {"inputs": (TIME, ROWS, WIDTH)}, weights, LENGTHS)


# Attention.


def attention_case(kind: str) -> Case:
    steps = 4  # of the memory

    def build(layers, queries, memory, lengths):
        keys = layers.attention_keys(memory, kind)
        return list(layers.attend(queries, keys, memory, lengths, kind))

    def expected(inputs, constants, weights, d_outputs):
        values = inputs["memory"]
        real = np.arange(steps) < constants["lengths"][:, None]
        memory = attention.memory_forward(kind, weights, values, real)
        gradients = {name: np.zeros_like(array) for name, array in weights.items()}
        d_memory = np.zeros_like(values), np.zeros_like(values)
        on = np.ones((ROWS, 1), bool)
        contexts, mixes, d_queries = [], [], []
        for query, d_context in zip(inputs["queries"], d_outputs[0], strict=True):
            mix, context, saved = attention.attention_forward(kind, weights, memory, query, on)
            d_queries.append(
                attention.attention_backward(
                    kind, weights, memory, d_context, saved, gradients, d_memory
                )
            )
            contexts.append(context)
            mixes.append(mix)
        d_values = attention.memory_backward(kind, weights, memory, d_memory, gradients)
        gradients |= {"queries": np.stack(d_queries), "memory": d_values}
        return [np.stack(contexts), np.stack(mixes)], gradients

    shapes = {
        "attention/query_kernel": (HIDDEN, HIDDEN),
        "attention/memory_kernel": (HIDDEN, HIDDEN),
        "attention/score_kernel": (HIDDEN,),
        "attention/scale": (1,),
    }
    parts = {"dot": (), "general": ("memory_kernel",), "scaled": ("memory_kernel", "scale")}
    names = parts.get(kind, ("query_kernel", "memory_kernel", "score_kernel"))
    return Case(
        build,
        expected,
        {"queries": (TIME, ROWS, HIDDEN), "memory": (ROWS, steps, HIDDEN)},
        {f"attention/{name}": shapes[f"attention/{name}"] for name in names},
        MEMORY_LENGTHS,
        trained=1,
    )


def attentional_expected(inputs, constants, weights, d_outputs):
    (name, kernel), (d_output,) = *weights.items(), d_outputs
    both = np.concatenate([inputs["context"], inputs["hidden"]], axis=2)
    output = np.tanh(both @ kernel)
    d_sum = d_output * (1 - output**2)
    d_both = d_sum @ kernel.T
    gradients = {"context": d_both[..., :HIDDEN], "hidden": d_both[..., HIDDEN:]}
    return [output], gradients | {name: oracle.rows_of(both).T @ oracle.rows_of(d_sum)}


# What surrounds them.


def reverse_expected(inputs, constants, weights, d_outputs):
    outputs = [
        turn(oracle.reverse_rows(turn(array), constants["lengths"]))
        for array in (inputs["inputs"], d_outputs[0])
    ]
    return outputs[:1], {"inputs": outputs[1]}


def real_rows_expected(inputs, constants, weights, d_outputs):
    real = np.arange(TIME)[:, None] < constants["lengths"]
    gradients = {name: np.zeros_like(array) for name, array in inputs.items()}
    for gradient, d_output in zip(gradients.values(), d_outputs, strict=True):
        gradient[real] = d_output
    return [array[real] for array in inputs.values()], gradients


def cross_entropy_expected(inputs, constants, weights, d_outputs):
    log_p, targets = oracle.log_softmax(inputs["logits"]), constants["targets"]
    d_logits = np.exp(log_p)
    at_target = np.arange(len(targets)), targets
    d_logits[at_target] -= 1
    return [-log_p[at_target]], {"logits": d_logits * d_outputs[0][:, None]}


CASES = {
    **{cell: recurrent_case(cell) for cell in GATES},
    **{f"bidirectional {cell}": bidirectional_case(cell) for cell in GATES},
    **{f"attention {kind}": attention_case(kind) for kind in KINDS},
    "attentional": Case(
        lambda layers, context, hidden: [layers.attentional(context, hidden)],
        attentional_expected,
        {"context": (TIME, ROWS, HIDDEN), "hidden": (TIME, ROWS, HIDDEN)},
        {"attention/output_kernel": (2 * HIDDEN, HIDDEN)},
    ),
    "reverse": Case(
        lambda layers, inputs, lengths: [layers.reverse(inputs, lengths)],
        reverse_expected,
        {"inputs": (TIME, ROWS, WIDTH)},
        constants=LENGTHS,
    ),
    "real rows": Case(
        lambda layers, losses, hidden, lengths: [
            layers.real_rows(losses, lengths),
            layers.real_rows(hidden, lengths),
        ],
        real_rows_expected,
        {"losses": (TIME, ROWS), "hidden": (TIME, ROWS, WIDTH)},
        constants=LENGTHS,
    ),
    "token cross entropy": Case(
        lambda layers, logits, targets: [layers.token_cross_entropy(logits, targets)],
        cross_entropy_expected,
        {"logits": (5, TOKENS)},
        constants={"targets": [0, 6, 2, 2, 3]},
    ),
}


def d_outputs_of(case: Case, outputs) -> list[np.ndarray]:
    shapes = {str(k): np.shape(output) for k, output in enumerate(outputs[: case.trained])}
    return list(case.draw("d_outputs", shapes).values())


# The feeding decoder runs over all steps at once, or over some and then over the others.

FEEDING = [(cell, kind) for cell in GATES for kind in KINDS]
CUT = 2


def feeding_case(cell: str, kind: str) -> tuple[Seq2seqSpec, Case]:
    model = Seq2seqSpec(
        embedding_size=WIDTH,
        hidden_size=HIDDEN,
        num_layers=2,
        cell=cell,
        attention=kind,
        input_feeding=True,
    )
    parts = {"lstm": ("h", "c"), "gru": ("h",)}[cell]

    def build(layers, inputs, memory, mask, fed, lengths, **state):
        states = [tuple(state[f"{part}_{k}"] for part in parts) for k in range(2)]
        keys = layers.attention_keys(memory, kind)

        def run(inputs, states, fed, mask):
            *found, states, fed = layers.feeding_decoder(
                inputs, states, fed, keys, memory, lengths, [mask], model
            )
            hidden, *rest = found
            return [*hidden, *rest], states, fed

        whole, last, last_fed = run(inputs, states, fed, mask)
        first, states, fed = run(inputs[:CUT], states, fed, mask[:, :CUT])
        second, states, fed = run(inputs[CUT:], states, fed, mask[:, CUT:])
        ends = [*(each for layer in last for each in layer), last_fed]
        ends_again = [*(each for layer in states for each in layer), fed]
        return [*whole, *first, *second, *ends, *ends_again]

    inputs = {
        "inputs": (TIME, ROWS, WIDTH),
        "memory": (ROWS, 4, HIDDEN),
        "mask": (ROWS, TIME, HIDDEN),
        "fed": (ROWS, HIDDEN),
        **{f"{part}_{k}": (ROWS, HIDDEN) for k in range(2) for part in parts},
    }
    weights = attention_case(kind).weights | {"attention/output_kernel": (2 * HIDDEN, HIDDEN)}
    for k in range(2):
        below = HIDDEN if k else WIDTH + HIDDEN
        weights |= layer_weights(f"decoder/{cell}_{k}", cell, below, HIDDEN)
    return model, Case(build, lambda: None, inputs, weights, MEMORY_LENGTHS, trained=0)


# What follows up to the next rule runs in a process of the framework.


def _layers(framework: str, kernels: str) -> dict:
    """Return of every case the outputs and the gradients of inputs and weights, as lists."""
    run = {"paddle": _paddle, "tensorflow": _tensorflow}[framework]
    cases = CASES | {
        f"feeding {cell} {kind}": feeding_case(cell, kind)[1] for cell, kind in FEEDING
    }
    return {name: [_lists(part) for part in run(case, kernels)] for name, case in cases.items()}


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
        trained = outputs[: case.trained]
        scope = paddle.static.Scope()
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            for name, array in weights.items():
                array = np.ascontiguousarray(swap_layout("paddle", name, array))
                scope.var(name).get_tensor().set(array, paddle.CPUPlace())
            feed = inputs | case.ints()
            values = executor.run(program, feed, outputs)
            if not trained:
                return values, {}
            d_outputs = d_outputs_of(case, values)
            # a sum is what a gradient is taken of: the engine knows no output's whole shape
            seeds = [
                paddle.static.data(f"seed_{k}", [-1] * each.ndim, "float64")
                for k, each in enumerate(d_outputs)
            ]
            feed |= {seed.name: array for seed, array in zip(seeds, d_outputs, strict=True)}
            total = paddle.add_n(
                [paddle.sum(each * seed) for each, seed in zip(trained, seeds, strict=True)]
            )
            sources = [read[name] for name in inputs]
            sources += [program.global_block().var(name) for name in weights]
            gradients = paddle.static.gradients([total], sources)
            found = dict(
                zip([*inputs, *weights], executor.run(program, feed, gradients), strict=True)
            )
    return values, {name: swap_layout("paddle", name, each) for name, each in found.items()}


def _tensorflow(case: Case, kernels: str):
    import tensorflow as tf

    from tf_impl.kernels import use_kernels

    tf1 = tf.compat.v1
    inputs, weights = case.draw("inputs", case.inputs), case.draw("weights", case.weights)
    with (
        use_kernels(kernels),
        tf.Graph().as_default(),
        tf1.variable_scope("", reuse=tf1.AUTO_REUSE),
    ):
        read = {
            name: tf1.placeholder(
                array.dtype,
                [None] * (array.ndim - 1) + [array.shape[-1] if array.ndim > 1 else None],
            )
            for name, array in (inputs | case.ints()).items()
        }
        outputs = case.build(_every_layer("tf_impl"), **read)
        variables = {each.op.name: each for each in tf1.trainable_variables()}
        trained = outputs[: case.trained]
        sources = [read[name] for name in inputs] + [variables[name] for name in weights]
        # before the first run: a loop that has run once cannot be differentiated any more
        seeds = [tf1.placeholder("float64", [None] * each.shape.rank) for each in trained]
        gradients = tf.gradients(trained, sources, seeds) if trained else []
        session = tf1.Session()
        feed = {read[name]: array for name, array in (inputs | case.ints()).items()}
        session.run([variables[name].assign(array) for name, array in weights.items()])
        values = session.run(outputs, feed)
        if not trained:
            return values, {}
        feed |= dict(zip(seeds, d_outputs_of(case, values), strict=True))
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        found = dict(zip([*inputs, *weights], session.run(gradients, feed), strict=True))
    return values, found


# -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KERNELS)
def found(request, frameworks):
    """Return framework -> case -> (outputs, gradients), all of a framework from one process."""
    return {name: each.call(_layers, name, request.param) for name, each in frameworks.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layer_is_the_oracles(found, framework, name):
    _check(CASES[name], *found[framework][name])


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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_beyond_a_length_is_exactly_nothing(found, framework):
    for cell in GATES:
        (hidden, *last), _ = found[framework][cell]
        inputs = CASES[cell].draw("inputs", CASES[cell].inputs)
        beyond = np.arange(TIME)[:, None] >= LENGTHS["lengths"]
        assert not np.any(np.array(hidden)[beyond])
        for name, state in zip(("h", "c"), last, strict=False):
            assert np.array_equal(state[2], inputs[name][2]), "a row of no token"
    for kind in KINDS:
        _, weights = found[framework][f"attention {kind}"][0]
        beyond = np.arange(4) >= np.array(MEMORY_LENGTHS["lengths"])[:, None]
        assert not np.any(np.swapaxes(weights, 1, 2)[:, np.swapaxes(beyond, 0, 1)])


@pytest.mark.parametrize(("cell", "kind"), FEEDING)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_feeding_decoder_can_be_interrupted(found, framework, cell, kind):
    outputs, _ = found[framework][f"feeding {cell} {kind}"]
    count = 2 + 3  # hidden of two layers, context, weights, attentional outputs
    whole, first, second = (outputs[k * count : (k + 1) * count] for k in range(3))
    for all_steps, *parts in zip(whole, first, second, strict=True):
        joined = np.concatenate([np.array(part) for part in parts])
        assert joined.shape[:2] == (TIME, ROWS)
        np.testing.assert_allclose(joined, all_steps, rtol=1e-12, atol=1e-14)
    ends = outputs[3 * count :]
    middle = len(ends) // 2
    assert middle == {"lstm": 5, "gru": 3}[cell]
    for one, other in zip(ends[:middle], ends[middle:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    assert np.array_equal(ends[middle - 1], whole[-1][-1]), "the last output is the next fed"


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
