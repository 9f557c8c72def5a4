"""Plain TensorFlow trainings that record themselves: what is seen; that nothing changes."""

import re
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from test_watch_keras import PAGE

import parity.tensorflow
from parity import Trace, assert_match
from parity.base.errors import UsageError

STEPS = 3


def model_of():
    """Return a model whose code AutoGraph has to convert, with a module that is shared."""
    import tensorflow as tf

    class Dense(tf.Module):
        def __init__(self, shape):
            self.kernel = tf.Variable(
                tf.random.stateless_normal(shape, [1, 2], dtype="float64")
            )

        def __call__(self, x):
            if tf.reduce_sum(x) > 1e9:
                x = x / 2
            return tf.tanh(x @ self.kernel)

    class Model(tf.Module):
        def __init__(self):
            self.layers = [Dense((4, 4)), Dense((4, 2))]
            self.shift = tf.Variable(np.zeros(2))

        def __call__(self, x):
            first, last = self.layers
            return last(first(first(x))) + self.shift

    return Model()


def train(model, optimizer=None, velocity=None, compiled=False, steps=STEPS):
    """Train by an optimiser, or by a rule of the user's own; return losses and weights."""
    import tensorflow as tf

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        if optimizer is not None:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            if variable.shape == velocity.shape:
                velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(0.1 * gradient)
        return loss

    step = tf.function(step, jit_compile=compiled == "xla") if compiled else step
    draw = np.random.default_rng(1)
    losses = [step(tf.constant(draw.normal(size=(3, 4)))).numpy() for _ in range(steps)]
    model(tf.ones((3, 4), "float64"))  # an evaluation
    return [*losses, *(each.numpy() for each in model.trainable_variables)]


WEIGHTS = ["shift", "layers.0.kernel", "layers.1.kernel"]
CALLS = ["layers.0", "layers.0#1", "layers.1", "model"]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rule", ["Adam", "own"])
def test_what_is_watched_computes_the_same_and_is_seen_whole(tmp_path, rule, compiled):
    import tensorflow as tf

    def how():
        if rule == "Adam":
            return {"optimizer": tf.keras.optimizers.Adam(0.01, clipnorm=0.5)}
        return {"velocity": tf.Variable(np.zeros(2))}

    plain = train(model_of(), compiled=compiled, **how())
    for name in ("a", "b"):
        model, options = model_of(), how()
        keeps = options.get("optimizer") or {"shift/velocity": options["velocity"]}
        with parity.tensorflow.watch(tmp_path / name, model, keeps):
            found = train(model, compiled=compiled, **options)
        for a, b in zip(plain, found, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not hasattr(type(model).__call__, "__wrapped__")
    assert_match(tmp_path / "a", tmp_path / "b")
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == list(range(STEPS))
    first, last = trace.read(0), trace.read(STEPS - 1)
    by_rung = {}
    for each in last:
        by_rung.setdefault(each.partition("/")[0], []).append(each.partition("/")[2])
    assert {n for n in first if n.startswith("initial/")} == {f"initial/{n}" for n in WEIGHTS}
    assert (by_rung["batch"], by_rung["loss"]) == (["0"], ["loss"])
    assert by_rung["forward"] == CALLS
    assert sorted(by_rung["activation_gradient"]) == CALLS
    for rung in ("gradient", "weight") + ("clipped_gradient",) * (rule == "Adam"):
        assert sorted(by_rung[rung]) == sorted(WEIGHTS)
    adam = {f"{n}/{slot}" for n in WEIGHTS for slot in ("momentum", "velocity")}
    slots = adam | {"model/iteration", "model/learning_rate"}
    assert set(by_rung["optimizer"]) == (slots if rule == "Adam" else {"shift/velocity"})
    np.testing.assert_array_equal(last["loss/loss"], plain[STEPS - 1])
    for weight, name in zip(plain[STEPS:], WEIGHTS, strict=True):
        np.testing.assert_array_equal(last[f"weight/{name}"], weight)
    if rule == "own":
        moved = first["initial/shift"] - 0.1 * first["gradient/shift"]
        np.testing.assert_array_equal(first["weight/shift"], moved)
        np.testing.assert_array_equal(
            last["optimizer/shift/velocity"],
            0.9 * trace.read(1)["optimizer/shift/velocity"] + last["gradient/shift"],
        )
    else:  # the slot is that of its own variable
        of_0, of_1 = (last[f"optimizer/layers.{n}.kernel/momentum"].shape for n in (0, 1))
        assert (of_0, of_1) == ((4, 4), (4, 2))


def test_what_cannot_be_seen_is_said(tmp_path):
    import tensorflow as tf

    watch = parity.tensorflow.watch
    kernel = tf.Variable(np.ones((4, 2)))
    said = pytest.warns(UserWarning, match="the model is not called: what it was given, and")
    with said as warned, watch(tmp_path / "a", {"kernel": kernel}):
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(kernel**2)
            kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    assert warned[0].filename == __file__
    names = ["gradient/kernel", "loss/loss", "weight/kernel"]
    assert sorted(Trace(tmp_path / "a").read(1)) == names
    model = model_of()
    refused = pytest.raises(UsageError, match="no layer of the model was called under a")
    with refused, watch(tmp_path / "b", model), tf.GradientTape() as tape:
        tape.gradient(tf.reduce_sum(model.shift**2), model.shift)
    refused = pytest.raises(UsageError, match="jit_compile=True")
    with refused, watch(tmp_path / "c", model):
        train(model, velocity=tf.Variable(np.zeros(2)), compiled="xla")


def keras_model():
    import keras

    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def mirrored_model():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return model_of()


BAD = {
    "strategy": (
        mirrored_model,
        None,
        "a tf.distribute strategy; allowed with an optimizer of",
    ),
    "keras": (keras_model, None, "parity.keras watches a keras.Model"),
    "number": (lambda: {"w": 1.0}, None, "model is dict; allowed: a tf.Module, or name -> tf"),
    "text": (model_of, "adam", "optimizer is str; allowed: a tf.keras.optimizers.Optimizer"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_model_that_cannot_be_watched_is_refused(tmp_path, case):
    model, optimizer, said = BAD[case]
    refused = pytest.raises(UsageError, match=said)
    with refused, parity.tensorflow.watch(tmp_path / "a", model(), optimizer):
        pass
    assert not (tmp_path / "a").exists()


def test_the_page_s_lines_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    codes = [each for each in codes if "import parity.tensorflow\n" in each]
    for code, folder in zip(codes, ("tensorflow", "session"), strict=True):
        exec(compile(code, "watching.md", "exec"), {"__name__": "page"})
        assert len(Trace(tmp_path / "out" / folder).numbers()) == 20


def session_training(folder, *, resource=True, tensors=None, monitored=False):
    """Train a 1.x graph, watched where a folder is given; return losses and weights."""
    import tensorflow as tf

    tf1, draw = tf.compat.v1, np.random.default_rng(2)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x = tf1.placeholder(tf.float64, [None, 4], "x")
        get = partial(tf1.get_variable, dtype=tf.float64, use_resource=resource)
        w, b = get("net/w", [4, 2]), get("net/b", [2], initializer=tf1.zeros_initializer())
        hidden = tf.nn.dropout(tf.nn.relu(x @ w + b, name="hidden"), 0.3)
        loss = tf.reduce_mean(hidden**2, name="loss")
        rule, count = tf1.train.AdamOptimizer(0.01), tf1.train.get_or_create_global_step()
        pairs = rule.compute_gradients(loss)
        clipped, _ = tf.clip_by_global_norm([each for each, _ in pairs], 0.1)
        pairs = zip(clipped, (each for _, each in pairs), strict=True)
        update = rule.apply_gradients(pairs, global_step=count)
        initial = tf1.global_variables_initializer()
        sparse = tf.SparseTensor([[0, 0]], [1.0], [1, 1])
        watched = nullcontext()
        if folder is not None:
            tensors = tensors or {"forward/hidden": "hidden:0", "loss/loss": loss}
            watched = parity.tensorflow.watch(folder, graph, tensors=tensors, steps=2)
        made = tf1.train.MonitoredSession() if monitored else tf1.Session()
        found = []
        with made as session, watched:
            if not monitored:
                session.run(initial)
            for number in range(STEPS):
                ran = session.run({"all": [loss, update]}, {x: draw.random((5, 4))})
                found.append(ran["all"][0])
                found.append(session.run("loss:0", {"x:0": np.ones((2, 4))}))
                found.append(session.run(sparse).values)
                with tf.Graph().as_default(), tf1.Session() as other:
                    found.append(other.run(tf.constant(number)))
            found += session.run([w, b])
        return found


@pytest.mark.parametrize("kind", ["resource", "reference", "monitored"])
def test_a_session_of_1_x_computes_the_same_and_is_seen(tmp_path, kind):
    options = {"resource": kind != "reference", "monitored": kind == "monitored"}
    watched = session_training(tmp_path / "a", **options)
    plain = session_training(None, **options)
    assert all(np.array_equal(a, b) for a, b in zip(watched, plain, strict=True))
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == [0, 2]
    assert trace.header["facts"]["optimizer"]["kind"] == "Adam"
    assert trace.header["facts"]["optimizer"]["settings"]["beta2"] == np.float32(0.999)
    first, last = trace.read(0), trace.read(2)
    slots = {f"optimizer/net/{name}/{slot}" for name in "wb" for slot in "mv"}
    slots |= {f"optimizer/model/beta{n}_power" for n in (1, 2)}
    seen = {"batch/x", "forward/hidden", "loss/loss", *slots}
    seen |= {f"{rung}/net/{name}" for rung in ("gradient", "weight") for name in "wb"}
    assert last.keys() == seen
    assert first.keys() - seen == {"initial/net/w", "initial/net/b"}
    # Adam's first step, of what the update read; TensorFlow's epsilon is before the correction
    gradient = first["gradient/net/w"]
    moved = first["weight/net/w"] - first["initial/net/w"]
    epsilon = 1e-8 / np.sqrt(1 - 0.999)
    expected = -0.01 * gradient / (np.abs(gradient) + epsilon)
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    assert np.sqrt(sum((first[f"gradient/net/{n}"] ** 2).sum() for n in "wb")) < 0.1 + 1e-9
    np.testing.assert_array_equal(last["weight/net/w"], watched[-2])


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"hidden": "hidden:0"}, "allowed: RUNG/NAME"),
        ({"forward/hidden": "nothing:0"}, "allowed: a tensor of the graph"),
        ({"forward/hidden": "hidden"}, "allowed: a tensor of the graph"),
    ],
)
def test_a_tensor_that_a_graph_does_not_hold_is_refused(tmp_path, tensors, said):
    with pytest.raises(UsageError, match=said):
        session_training(tmp_path / "a", tensors=tensors)


def test_a_graph_that_updates_nothing_is_refused(tmp_path):
    import tensorflow as tf

    refused = pytest.raises(UsageError, match="updates no variable")
    with refused, parity.tensorflow.watch(tmp_path / "a", tf.Graph()):
        pass


@pytest.mark.parametrize("sparse", [False, True])
def test_what_a_session_s_rule_keeps_is_no_weight(tmp_path, sparse):
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        table = tf1.get_variable("words/table", [5, 2], tf.float64)
        w = tf1.get_variable("w", [2], tf.float64)
        found = tf.gather(table, [1, 1]) if sparse else table
        loss = tf.reduce_mean((found * w) ** 2)
        train = tf1.train.AdamOptimizer(0.5).minimize(loss)
        session.run(tf1.global_variables_initializer())
        with parity.tensorflow.watch(tmp_path, graph):
            session.run(train)
    tensors = Trace(tmp_path).read(0)
    of = {each.partition("/")[2] for each in tensors if each.startswith("weight/")}
    assert of == {"w", "words/table"}
    slots = {each for each in tensors if each.startswith("optimizer/words")}
    assert slots == {f"optimizer/words/table/{each}" for each in "mv"}
    moved = tensors["optimizer/words/table/m"].any(1)
    assert moved.tolist() == [not sparse, True, not sparse, not sparse, not sparse]


def test_plain_descent_says_its_rate(tmp_path):
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        w = tf1.get_variable("w", [2], tf.float64)
        train = tf1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(w))
        session.run(tf1.global_variables_initializer())
        with parity.tensorflow.watch(tmp_path, graph):
            session.run(train)
    rule = Trace(tmp_path).header["facts"]["optimizer"]
    assert rule == {"kind": "GradientDescent", "settings": {"lr": 0.5}}
