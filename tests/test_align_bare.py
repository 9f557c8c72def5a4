"""Trainings that do not say what their modules are, aligned with a PyTorch training.

They are graphs of TensorFlow 1.x, variables under a `tf.GradientTape`, and functions of JAX.
"""

import dataclasses
import os
from functools import partial

import numpy as np
import pytest

import parity.torch
from parity import Trace, assert_match
from parity.align.mapping import read, write
from parity.align.proposal import propose
from parity.align.traps import traps
from parity.align.weights import carried, write_weights
from parity.base.errors import UsageError

pytestmark = pytest.mark.torch

STEPS, RATE = 3, 2.0**-6
SIZES = {"mlp": (16, 6), "conv": (16, 2, 6, 6)}
IN = {"tensorflow": [], "jax": [pytest.mark.jax]}
BARE = [pytest.param(name, marks=marks) for name, marks in IN.items()]


def batches(network):
    draw = np.random.default_rng(5)
    for _ in range(STEPS):
        words = draw.integers(0, 11, (16, 5))
        yield (
            draw.normal(size=SIZES[network]) if network in SIZES else words,
            draw.random((16, 3)),
        )


def in_torch(folder, network):
    import torch
    from torch import nn

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(11, 6), nn.Linear(8, 3)
            self.rnn = nn.LSTM(6, 8, batch_first=True)
            self.rnn.bias_hh_l0.requires_grad_(False)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    torch.manual_seed(1)
    first, norm, last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
    conv, flat = nn.Conv2d(2, 4, 3, padding=1), nn.Flatten()
    model = {
        "mlp": lambda: nn.Sequential(first, norm, nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), last),
        "conv": lambda: nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), flat, nn.Linear(36, 3)),
        "lstm": Lstm,
    }[network]().double()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, RATE)
    with parity.torch.watch(folder, model, optimizer):
        for x, y in batches(network):
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# name of a parameter in a graph -> shape, as people write it; each in the order of its making
SHAPES = {
    "mlp": {
        "fc1/w": (6, 8),
        "fc1/b": (8,),
        "norm/gamma": (8,),
        "norm/beta": (8,),
        "fc2/w": (8, 8),
        "fc2/b": (8,),
        "fc3/w": (8, 3),
        "fc3/b": (3,),
    },
    "conv": {"conv/kernel": (3, 3, 2, 4), "conv/bias": (4,), "out_w": (36, 3), "out_b": (3,)},
    "lstm": {
        "words": (11, 6),
        "cell/kernel": (14, 32),
        "cell/bias": (32,),
        "head/w": (8, 3),
        "head/b": (3,),
    },
}
# what PyTorch calls it -> what the other side does, and the layout
_FLAT = [{"reshape": [[3, 36], [3, 3, 3, 4]]}, {"axes": [0, 3, 1, 2]}]
_FLAT += [{"reshape": [[3, 4, 3, 3], [3, 36]]}]
EXPECTED = {
    "mlp": {
        "0.weight": ("fc1/w", ["transpose"]),
        "0.bias": ("fc1/b", []),
        "1.weight": ("norm/gamma", []),
        "1.bias": ("norm/beta", []),
        "3.weight": ("fc2/w", ["transpose"]),
        "3.bias": ("fc2/b", []),
        "5.weight": ("fc3/w", ["transpose"]),
        "5.bias": ("fc3/b", []),
    },
    "conv": {
        "0.weight": ("conv/kernel", [{"axes": [3, 2, 0, 1]}]),
        "0.bias": ("conv/bias", []),
        "4.weight": ("out_w", ["transpose", *_FLAT]),
        "4.bias": ("out_b", []),
    },
    "lstm": {
        "embed.weight": ("words", []),
        "rnn.weight": ("cell/kernel", ["transpose", {"blocks": [0, [0, 2, 1, 3]]}]),
        "rnn.bias": ("cell/bias", [{"blocks": [0, [0, 2, 1, 3]]}]),
        "out.weight": ("head/w", ["transpose"]),
        "out.bias": ("head/b", []),
    },
}
# units that nothing but their shapes tells
SURE = {"mlp": {"5"}, "conv": {"0"}, "lstm": {"embed", "out"}}
OUTPUTS = {"mlp": {"0", "5"}, "conv": {"4"}, "lstm": {"out"}}
GATES = "igfo"


def forward(lib, network, get, x, tap, gates):
    """Compute a network by the functions of a library; `get` gives parameters by name."""

    def linear(name, x):
        w, b = (f"{name}_w", f"{name}_b") if network == "conv" else (f"{name}/w", f"{name}/b")
        return lib.matmul(x, get(w)) + get(b)

    if network == "mlp":
        x = tap("first", linear("fc1", x))
        mean = lib.mean(x, 1)
        x = (x - mean) / lib.sqrt(lib.mean((x - mean) ** 2, 1) + 1e-5)
        x = linear("fc2", lib.relu(x * get("norm/gamma") + get("norm/beta")))
        return tap("last", linear("fc3", lib.tanh(x)))
    if network == "conv":
        x = lib.relu(lib.conv(x, get("conv/kernel")) + get("conv/bias"))
        return tap("last", linear("out", lib.reshape(lib.pooled(x), (16, 36))))
    words = lib.take(get("words"), x)
    hidden = cell = np.zeros((16, 8))
    for time in range(5):
        both = lib.concat([words[:, time], hidden])
        parts = lib.split(lib.matmul(both, get("cell/kernel")) + get("cell/bias"))
        of = dict(zip(gates, parts, strict=True))
        kept = lib.sigmoid(of["f"]) * cell
        cell = kept + lib.sigmoid(of["i"]) * lib.tanh(of["g"])
        hidden = lib.sigmoid(of["o"]) * lib.tanh(cell)
    return tap("last", linear("head", hidden))


def first_values(network, hand):
    """Return the parameters to begin with: drawn, and zeros of biases, or what `hand` has."""
    draw = np.random.default_rng(8)
    found = {}
    for name, shape in SHAPES[network].items():
        found[name] = np.zeros(shape) if len(shape) == 1 else 0.3 * draw.normal(size=shape)
    norm = {"norm/gamma": np.ones(8)} if network == "mlp" else {}
    return found | norm | (hand or {})


def in_tensorflow(folder, network, weights=None, hand=None, gates=GATES):
    import tensorflow as tf

    import parity.tensorflow

    class Lib:
        matmul, sqrt, tanh, sigmoid, reshape = (
            *(tf.matmul, tf.sqrt, tf.tanh, tf.sigmoid, tf.reshape),
        )
        relu, mean = tf.nn.relu, partial(tf.reduce_mean, keepdims=True)
        conv = partial(tf.nn.conv2d, strides=1, padding="SAME")
        pooled = partial(tf.nn.max_pool2d, ksize=2, strides=2, padding="VALID")
        take, concat = tf.gather, partial(tf.concat, axis=1)
        split = partial(tf.split, num_or_size_splits=4, axis=1)

    tf1, values = tf.compat.v1, first_values(network, hand)
    tensors = {}

    def tap(name, tensor):
        tensors[f"forward/{name}"] = tensor
        return tensor

    with tf.Graph().as_default() as graph, tf1.Session() as session:
        fed = [np.moveaxis(x, 1, -1) if x.ndim == 4 else x for x, _ in batches(network)]
        x = tf1.placeholder(fed[0].dtype, fed[0].shape, "x")
        y = tf1.placeholder(tf.float64, [16, 3], "y")
        known = {
            name: tf1.get_variable(name, initializer=each) for name, each in values.items()
        }
        found = forward(Lib, network, known.get, x, tap, gates)
        tensors["loss/loss"] = loss = tf.reduce_mean((found - y) ** 2)
        train = tf1.train.GradientDescentOptimizer(RATE).minimize(loss)
        session.run(tf1.global_variables_initializer())
        if weights:
            parity.tensorflow.load(graph, weights)
        with parity.tensorflow.watch(folder, graph, tensors=tensors):
            for each, (_, target) in zip(fed, batches(network), strict=True):
                session.run(train, {x: each, y: target})


def in_jax(folder, network, weights=None, hand=None, gates=GATES):
    import jax
    import optax
    from jax import numpy as jnp

    import parity.jax

    class Lib:
        matmul, sqrt, tanh, sigmoid = jnp.matmul, jnp.sqrt, jnp.tanh, jax.nn.sigmoid
        relu, mean, reshape = jax.nn.relu, partial(jnp.mean, keepdims=True), jnp.reshape
        take, concat = partial(jnp.take, axis=0), partial(jnp.concatenate, axis=1)
        split = partial(jnp.split, indices_or_sections=4, axis=1)
        conv = partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

        @staticmethod
        def pooled(x):
            return jnp.max(jnp.reshape(x, (16, 3, 2, 3, 2, 4)), (2, 4))

    params = {}
    for name, each in first_values(network, hand).items():
        *around, own = name.split("/")
        holder = params.setdefault(around[0], {}) if around else params
        holder[own] = jnp.asarray(each)
    params = parity.jax.load(params, weights) if weights else params
    rule = optax.sgd(RATE)
    state = rule.init(params)

    def loss(params, x, y):
        def get(name):
            found = params
            for each in name.split("/"):
                found = found[each]
            return found

        return ((forward(Lib, network, get, x, parity.jax.tap, gates) - y) ** 2).mean()

    with parity.jax.watch(folder, params, rule):
        for x, y in batches(network):
            x = np.moveaxis(x, 1, -1) if x.ndim == 4 else x
            updates, state = rule.update(jax.grad(loss)(params, x, y), state)
            params = optax.apply_updates(params, updates)


@pytest.fixture
def port():
    """Return what records a port; JAX computes in float64 until the test ends."""
    undo = []

    def record(side, *words, **named):
        if side == "jax" and not undo:
            import jax

            jax.config.update("jax_enable_x64", True)
            undo.append(partial(jax.config.update, "jax_enable_x64", False))
        {"jax": in_jax, "tensorflow": in_tensorflow}[side](*words, **named)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    yield record
    for each in undo:
        each()


def paired(mapping, side):
    """Return what PyTorch calls a parameter -> what the other side does, and the layout."""
    rows = [row for row in mapping.rows if row.parameters]
    found = {}
    for row in rows:
        for role, (mine, other) in row.parameters.items():
            (name,) = other.names
            key = role if len(mine.names) > 1 else mine.names[0]
            found[key] = name, [*other.layout]
    mark = "." if side == "jax" else "/"
    assert all(mark in name or "/" not in name for name, _ in found.values())
    return {key: (name.replace(".", "/"), layout) for key, (name, layout) in found.items()}


@pytest.mark.parametrize("network", SHAPES)
@pytest.mark.parametrize("side", BARE)
def test_a_port_is_proposed_confirmed_by_values_and_matches(tmp_path, port, side, network):
    a, b, file = tmp_path / "a", tmp_path / "b", tmp_path / "map.yaml"
    in_torch(a, network)
    port(side, b, network)
    proposed = propose([Trace(a), Trace(b)])
    assert paired(proposed, side) == EXPECTED[network]
    units = [row for row in proposed.rows if row.parameters]
    assert {row.units[0] for row in units if row.use} == SURE[network]
    every = [dataclasses.replace(row, use=True) for row in proposed.rows]
    write_weights(carried(Trace(a), dataclasses.replace(proposed, rows=every)), file)
    port(side, b, network, weights=file)
    confirmed = propose([Trace(a), Trace(b)])
    assert paired(confirmed, side) == EXPECTED[network]
    assert all(row.use for row in confirmed.rows)
    outputs = {row.units[0] for row in confirmed.rows if row.kind == "output"}
    assert outputs == OUTPUTS[network]
    write(confirmed, file)
    assert_match(a, b, mapping=file)
    assert traps([Trace(a), Trace(b)]) == []
    # and the other way round
    back = propose([Trace(b), Trace(a)])
    assert all(row.use for row in back.rows)
    first = Trace(a).read(0)
    for name, weight in carried(Trace(b), back).items():
        if "bias_" not in name:  # one that was two comes back as that one and a zero
            np.testing.assert_array_equal(weight, first[f"initial/{name}"])
    write(back, file)
    assert_match(b, a, mapping=file)


@pytest.mark.parametrize("side", BARE)
def test_gates_in_another_order_are_not_sure_until_values_tell_them(tmp_path, port, side):
    a, b, weights = tmp_path / "a", tmp_path / "b", tmp_path / "weights"
    in_torch(a, "lstm")
    port(side, b, "lstm", gates="oifg")
    proposed = propose([Trace(a), Trace(b)])
    every = [dataclasses.replace(row, use=True) for row in proposed.rows]
    write_weights(carried(Trace(a), dataclasses.replace(proposed, rows=every)), weights)
    port(side, b, "lstm", weights=weights, gates="oifg")
    rows = {row.units[0]: row for row in propose([Trace(a), Trace(b)]).rows}
    assert not rows["rnn"].use
    assert "initial weights equal; first gradients differ" in rows["rnn"].why
    given = {n.removeprefix("initial/rnn."): x for n, x in Trace(a).read(0).items()}
    both = given["weight_ih_l0"], given["weight_hh_l0"]
    turned = [
        np.concatenate([np.split(each, 4)["ifgo".index(gate)] for gate in "oifg"])
        for each in (np.concatenate(both, 1), given["bias_ih_l0"] + given["bias_hh_l0"])
    ]
    first = Trace(a).read(0)
    hand = {
        "words": first["initial/embed.weight"],
        "cell/kernel": turned[0].T,
        "cell/bias": turned[1],
        "head/w": first["initial/out.weight"].T,
        "head/b": first["initial/out.bias"],
    }
    port(side, b, "lstm", hand=hand, gates="oifg")
    rows = {row.units[0]: row for row in propose([Trace(a), Trace(b)]).rows}
    assert rows["rnn"].use
    assert rows["rnn"].parameters["rnn.bias"][1].layout == ({"blocks": [0, [1, 2, 3, 0]]},)


def test_variables_under_a_tape_are_aligned_and_take_over_weights(tmp_path):
    import tensorflow as tf

    def train(folder, weights=None):
        draw = np.random.default_rng(4)
        shapes = {"w1": (6, 8), "b1": (8,), "g": (8,), "beta": (8,), "w2": (8, 8), "b2": (8,)}
        held = {n: tf.Variable(draw.normal(size=shape)) for n, shape in shapes.items()}
        held |= {"w3": tf.Variable(draw.normal(size=(8, 3))), "b3": tf.Variable(np.zeros(3))}
        if weights:
            parity.tensorflow.load(held, weights)
        with parity.tensorflow.watch(folder, held):
            for x, y in batches("mlp"):
                with tf.GradientTape() as tape:
                    x = x @ held["w1"] + held["b1"]
                    mean = tf.reduce_mean(x, 1, keepdims=True)
                    squares = tf.reduce_mean((x - mean) ** 2, 1, keepdims=True)
                    x = (x - mean) / tf.sqrt(squares + 1e-5) * held["g"] + held["beta"]
                    x = tf.tanh(tf.nn.relu(x) @ held["w2"] + held["b2"])
                    loss = tf.reduce_mean((x @ held["w3"] + held["b3"] - y) ** 2)
                gradients = tape.gradient(loss, list(held.values()))
                for each, gradient in zip(held.values(), gradients, strict=True):
                    each.assign_sub(RATE * gradient)

    import parity.tensorflow

    a, b, file = tmp_path / "a", tmp_path / "b", tmp_path / "map.yaml"
    in_torch(a, "mlp")
    train(b)
    proposed = propose([Trace(a), Trace(b)])
    every = [dataclasses.replace(row, use=True) for row in proposed.rows]
    write_weights(carried(Trace(a), dataclasses.replace(proposed, rows=every)), file)
    train(b, file)
    confirmed = propose([Trace(a), Trace(b)])
    assert all(row.use for row in confirmed.rows)
    write(confirmed, file)
    assert read(file).rows == confirmed.rows
    assert_match(a, b, mapping=file)


def test_weights_go_to_the_session_that_is_open(tmp_path):
    import tensorflow as tf

    import parity.tensorflow

    tf1 = tf.compat.v1
    write_weights({"w": np.full(2, 3.0)}, tmp_path / "weights")
    with tf.Graph().as_default() as graph:
        w = tf1.get_variable("w", [2], tf.float64, use_resource=False)
        tf1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))
        with pytest.raises(UsageError, match="no session of the graph is open"):
            parity.tensorflow.load(graph, tmp_path / "weights")
        with tf1.Session() as session:
            parity.tensorflow.load(graph, tmp_path / "weights")
            assert session.run(w).tolist() == [3, 3]
