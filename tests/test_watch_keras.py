"""Keras trainings that record themselves: what is seen, and that it changes nothing.

Each runs in a process of its own: Keras has one backend in a process.
"""

import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import run_python
from moved_numbers import assert_moved

from parity import Trace, assert_match

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "watching.md"
BACKENDS = [
    "tensorflow",
    pytest.param("torch", marks=pytest.mark.thorough),
    pytest.param("jax", marks=pytest.mark.jax),
]

MODEL = """
import json
import os
import warnings
from pathlib import Path
import keras
import numpy as np
import parity.keras
from parity.pair.perturbation import environment

warnings.simplefilter("error", UserWarning)
draw = np.random.default_rng(2)
x, y = draw.integers(0, 11, (40, 5)), draw.random((40, 3), dtype=np.float32)

def model_of(**compiled):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    tokens = keras.Input((5,))
    states = keras.layers.LSTM(6)(keras.layers.Embedding(11, 6, mask_zero=True)(tokens))
    hidden = keras.layers.Dense(7)(keras.layers.Dropout(0.3)(states))
    hidden = keras.layers.BatchNormalization()(keras.layers.ReLU()(hidden))
    model = keras.Model(tokens, keras.layers.Dense(3, activation="tanh")(hidden))
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.1), loss="mse", **compiled)
    return model

def same(a, b):
    pairs = zip(a.variables + a.optimizer.variables, b.variables + b.optimizer.variables)
    # a step that XLA compiles is rounded otherwise when it is watched
    near = 1e-4 if keras.backend.backend() == "jax" else 0
    return all(np.allclose(v, w, 0, near) for v, w in pairs)
"""

FIT = """
def fit(model):
    keras.utils.set_random_seed(3)
    model.fit(x, y, 4, epochs=1, verbose=0, validation_split=0.2)
    model.fit(x[:8], y[:8], 4, verbose=0)
    model.predict(x, verbose=0)

plain, watched = model_of(), model_of()
fit(plain)
with parity.keras.watch("a", watched):
    fit(watched)
assert same(plain, watched)
fit(plain), fit(watched)  # nothing of the watch is left
assert same(plain, watched)
os.environ |= environment(Path("a"), Path("moved"), 1)
model = model_of()
with parity.keras.watch("a", model):
    fit(model)
leaves = [each.path or each.name for each in watched._flatten_layers() if not each._layers]
names = [each.path for each in watched.variables]
trained = [each.path for each in watched.trainable_variables]
slots = len(watched.optimizer.variables)
print(json.dumps([leaves, names, trained, slots]))
"""

TAPE = """
import tensorflow as tf

def train(model, optimizer, compiled):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss
    step = tf.function(step) if compiled else step
    losses = [float(step(x[i:i + 4], y[i:i + 4])) for i in range(0, 12, 4)]
    model(x)
    return losses

for compiled in (False, True):
    plain, watched = model_of(), model_of()
    losses = train(plain, plain.optimizer, compiled)
    with parity.keras.watch(f"{compiled}", watched, watched.optimizer):
        assert train(watched, watched.optimizer, compiled) == losses
    assert same(plain, watched)
print(losses)
"""


def run(code, cwd, backend="tensorflow", **variables):
    """Run code in a process of its own; return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    done = run_python(
        "-c",
        code,
        cwd=cwd,
        env={
            **environment,
            **variables,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_computes_the_same_and_is_seen_whole(tmp_path, backend):
    leaves, names, trained, slots = json.loads(run(MODEL + FIT, tmp_path, backend))
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == list(range(10))
    first, tensors = trace.read(0), trace.read(7)
    outputs = {name.partition("#")[0] for name in tensors}
    for each in leaves:
        if each == "input_layer":
            continue
        assert f"forward/{each}" in outputs or f"forward/{each}/0" in outputs, each
        assert f"activation_gradient/{each}" in outputs or f"forward/{each}/0" in outputs, each
    of = {
        rung: [name.removeprefix(f"{rung}/") for name in tensors if name.startswith(f"{rung}/")]
        for rung in ("batch", "loss", "weight", "gradient", "clipped_gradient", "optimizer")
    }
    assert (of["batch"], of["loss"]) == (["0"], ["loss"])
    assert sorted(of["weight"]) == sorted(names)
    assert {f"initial/{each}" for each in names} <= first.keys()
    assert sorted(of["gradient"]) == sorted(of["clipped_gradient"]) == sorted(trained)
    pairs = {f"{each}/{slot}" for each in trained for slot in ("momentum", "velocity")}
    assert set(of["optimizer"]) == {*pairs, "model/iteration", "model/learning_rate"}
    assert len(of["optimizer"]) == slots
    clipped = [  # Keras clips the rows of an embedding before it sums those of the same word
        np.linalg.norm(tensors[f"clipped_gradient/{each}"])
        for each in trained
        if not each.startswith("embedding")
    ]
    assert max(clipped) <= 0.1 * (1 + 1e-5)
    relu, dense = tensors["activation_gradient/dense"], tensors["forward/dense"]
    np.testing.assert_array_equal(tensors["forward/re_lu"], np.maximum(dense, 0))
    np.testing.assert_array_equal(relu, tensors["activation_gradient/re_lu"] * (dense > 0))
    assert_moved(tmp_path / "a", tmp_path / "moved", "dense_1")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Run in one process what TensorFlow's backend does; return its folder and its lines."""
    folder = tmp_path_factory.mktemp("tensorflow")
    (page,) = re.findall(r"```python\n(import keras\n.*?)```", PAGE.read_text(), re.DOTALL)
    return folder, run(page + MODEL + TAPE + DECAYS + OWN + REFUSED, folder).splitlines()


def test_the_page_s_lines_run_as_written(one_process):
    assert Trace(one_process[0] / "out" / "keras").numbers() == list(range(20))


def test_a_loop_of_one_s_own_is_seen_eagerly_and_as_a_graph(one_process):
    folder, lines = one_process
    losses = json.loads(lines[-len(TOLD) - 1])
    eager, graph = Trace(folder / "False"), Trace(folder / "True")
    assert eager.numbers() == graph.numbers() == [0, 1, 2]
    np.testing.assert_allclose([graph.read(n)["loss/loss"] for n in range(3)], losses)
    names = [set(trace.read(1)) for trace in (eager, graph)]
    # eagerly, a state that nothing uses has no gradient; in a graph it is zero
    assert names[1] - names[0] == {"activation_gradient/lstm/lstm_cell#5/1/1"}
    assert names[0] <= names[1]
    # in the first step, without the bias that BatchNormalization takes out again: its gradient
    # is rounding alone, which Adam turns into a step
    for name, value in eager.read(0).items():
        if name == "weight/dense/bias":
            continue
        np.testing.assert_allclose(graph.read(0)[name], value, atol=1e-5, err_msg=name)
    assert any(name.startswith("forward/lstm/lstm_cell#") for name in eager.read(1))
    assert "forward/model#1" not in eager.read(1)  # the call without a tape


DECAYS = """
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="fc")], name="net")
rule = keras.optimizers.AdamW(weight_decay=0.25)
rule.exclude_from_weight_decay(var_names=["bias"])
model.compile(rule, loss="mse")
with parity.keras.watch("decays", model):
    model.fit(np.ones((8, 4)), np.ones((8, 2)), 4, verbose=0)
"""


def test_variables_left_out_of_the_decay_are_stated(one_process):
    facts = Trace(one_process[0] / "decays").header["facts"]
    assert {
        name: each["settings"]["weight_decay"]
        for each in facts["optimizers"]
        for name in each["parameters"]
    } == {"net/fc/kernel": 0.25, "net/fc/bias": 0.0}


OWN = """
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 * keras.ops.minimum(1.0, (keras.ops.cast(step, "float32") + 1) / 4)

class Cell(keras.layers.Layer):
    state_size = 2

    def __init__(self, act):
        super().__init__()
        self.kernel = self.add_weight(shape=(4, 2), name="kernel")
        self.act = act

    def call(self, x, states):
        new = self.act(x @ self.kernel + states[0])
        return new, [new]

model = keras.Sequential([keras.Input((3, 4)), keras.layers.RNN(Cell(keras.ops.tanh))])
model.compile(keras.optimizers.SGD(Warmup(), momentum=0.5), loss="mse")
with parity.keras.watch("own", model):
    model.fit(np.ones((8, 3, 4)), np.ones((8, 2)), 4, verbose=0)
"""


def test_a_schedule_and_a_cell_that_state_nothing_are_watched(one_process):
    trace = Trace(one_process[0] / "own")
    assert trace.header["facts"]["optimizer"]["settings"]["momentum"] == 0.5
    assert trace.numbers() == [0, 1]


PARTS = """
import subprocess
import sys

def train_in_parts(folder, parts, eager, steps=4, weights=None):
    keras.utils.clear_session()
    rule = keras.optimizers.Adam(
        0.01, clipnorm=0.01, gradient_accumulation_steps=parts if parts > 1 else None
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="fc")], name="net")
    model.get_layer("fc").set_weights([np.ones((4, 3)), np.zeros(3)])
    model.compile(rule, loss="mse", run_eagerly=eager, jit_compile=False)
    if weights is not None:
        parity.keras.load(model, weights, rule)
    draw = np.random.default_rng(3)
    pairs = draw.normal(size=(24, 4)), draw.normal(size=(24, 3))
    inputs, targets = (each[-6 * steps :] for each in pairs)
    how = {"batch_size": 6 // parts, "shuffle": False, "verbose": 0}
    before = 2 if parts > 1 else 0  # the watch begins after the first of several parts
    if before:
        model.fit(inputs[:before], targets[:before], **how)
    with parity.keras.watch(folder, model):
        model.fit(inputs[before:], targets[before:], **how)

for eager in (False,) if keras.backend.backend() == "jax" else (False, True):
    for parts in (1, 3):
        train_in_parts(f"{eager}-{parts}", parts, eager)
    for words in (
        ("align", f"{eager}-3", f"{eager}-3", "-o", "map.yaml"),
        ("weights", f"{eager}-3", "--map", "map.yaml", "--after", "1", "-o", "w.safetensors"),
    ):
        subprocess.run([sys.executable, "-m", "parity", *words], check=True)
    train_in_parts(f"{eager}-resumed", 3, eager, 2, "w.safetensors")
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_micro_batches_of_a_step_are_recorded_as_one_step(tmp_path, backend):
    run(MODEL + PARTS, tmp_path, backend)
    folders = sorted(tmp_path.glob("*-3"))
    assert len(folders) == (1 if backend == "jax" else 2)
    for folder in folders:
        whole, parts = Trace(folder.with_name(folder.name.replace("3", "1"))), Trace(folder)
        assert whole.numbers() == parts.numbers() == [0, 1, 2, 3]
        for number in whole.numbers():
            a, b = whole.read(number), parts.read(number)
            ending = ("gradient", "clipped_gradient", "optimizer", "weight")
            names = {name for name in b if name.partition("/")[0] in ending}
            expected = {name for name in a if name.partition("/")[0] in ending}
            assert names == expected
            for name in names:
                np.testing.assert_allclose(b[name], a[name], 1e-4, 1e-6, err_msg=name)
        assert "forward/net/fc#2" in b
        resumed = Trace(folder.with_name(folder.name.replace("3", "resumed")))
        for name, array in resumed.read(1).items():
            np.testing.assert_array_equal(array, b[name], name)


REFUSED = """
import tensorflow as tf

@tf.function(jit_compile=True)
def compiled(model):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, 4))))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables))

def small():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model

def told(train, *given, **options):
    try:
        with parity.keras.watch("a", *given, **options):
            train(given[0])
    except parity.base.errors.UsageError as error:
        print(str(error))

def fit(model):
    model.fit(np.ones((8, 4)), np.ones((8, 2)), 4, verbose=0)

def only_apply(model):
    model.optimizer.apply([tf.zeros_like(v) for v in model.trainable_variables])

sgd = keras.optimizers.SGD()
with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    told(fit, small())
told(fit, model_of(jit_compile=True))
told(compiled, small())
told(fit, None)
told(fit, small(), "adam")
told(fit, keras.Sequential([keras.layers.Dense(2, name="fc")], name="net"), sgd)
told(only_apply, small())
told(fit, small(), names={"nothing": "b"})
"""


COMPILED = "the training is compiled with jit_compile=True, Keras's choice on a GPU"
TOLD = [
    "model is under a OneDeviceStrategy; allowed: MirroredStrategy, MultiWorkerMirrored",
    COMPILED,
    COMPILED,
    "model is NoneType; allowed: a keras.Model",
    "optimizer is 'adam'; allowed: a keras.optimizers.Optimizer",
    "not built yet: net, fc; allowed: a model that was built",
    "no layer of the model was called under a gradient tape; allowed: the model that",
    "step 0: no tensor of the name map's 'nothing'",
]


def test_what_cannot_be_seen_is_told_in_a_sentence(one_process):
    _, lines = one_process
    for each, told in zip(lines[-len(TOLD) :], TOLD, strict=True):
        assert each.startswith(told), lines


REPLICAS = """
import os
import keras
import numpy as np
import tensorflow as tf
import parity.keras
import parity.tensorflow

devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
many = "TF_CONFIG" in os.environ
strategy = (
    tf.distribute.MultiWorkerMirroredStrategy()
    if many
    else tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
)
keras.config.set_floatx("float64")
x = np.random.default_rng(1).normal(size=(24, 4))
data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).batch(8)

class LeavesOut(keras.optimizers.Adam):
    def _all_reduce_sum_gradients(self, pairs):
        found = super()._all_reduce_sum_gradients(pairs)
        left = (each.shape == (2,) for _, each in pairs)
        return [own if out else every for own, every, out in zip(pairs, found, left)]

class Linear(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(tf.ones((4, 2), tf.float64))

    def __call__(self, x, training):
        return x @ self.kernel

def fit(folder, model, optimizer, strategy):
    model.compile(optimizer, loss="mse", jit_compile=False)
    with parity.keras.watch(folder, model):
        model.fit(x, x[:, :2], 8, shuffle=False, verbose=0)

def loop(folder, model, optimizer, strategy):
    variables = list(model.trainable_variables)
    optimizer.build(variables)
    package = parity.keras if isinstance(model, keras.Model) else parity.tensorflow

    def replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((model(x, training=True) - y) ** 2, 1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=8)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    step = tf.function(lambda x, y: strategy.run(replica, args=(x, y)))
    with package.watch(folder, model, optimizer):
        for batch in strategy.experimental_distribute_dataset(data):
            step(*batch)

def dense():
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)
    return keras.Sequential([keras.Input((4,)), *layers])

def run(folder, train, strategy, model_of=dense, rule=keras.optimizers.Adam):
    keras.utils.clear_session()
    with strategy.scope():
        train(folder, model_of(), rule(0.01), strategy)

if many:  # whose `fit` fails in Keras 3.15, watched or not
    run("loop/workers", loop, strategy)
else:
    for side, each in (("one", tf.distribute.get_strategy()), ("two", strategy)):
        run(f"fit/{side}", fit, each)
        run(f"loop/{side}", loop, each)
        run(f"module/{side}", loop, each, Linear)
    run("fit/left-out", fit, strategy, rule=LeavesOut)
"""


@pytest.mark.thorough
def test_replicas_and_workers_are_compared_with_one_process(tmp_path):
    with socket.create_server(("localhost", 0)) as a, socket.create_server(("", 0)) as b:
        workers = [f"localhost:{each.getsockname()[1]}" for each in (a, b)]
    tasks = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        for rank in range(2)
    ]
    given = [{}, *({"TF_CONFIG": json.dumps(each)} for each in tasks)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda more: run(REPLICAS, tmp_path, **more), given))
    for sides in ("fit/one", "fit/two"), ("loop/one", "loop/two"), ("loop/one", "loop/workers"):
        report = assert_match(*(tmp_path / side for side in sides))
        assert (report["dtype"], report["steps"], report["only"]) == ("float64", 3, {})
    assert_match(tmp_path / "module" / "one", tmp_path / "module" / "two")
    with pytest.raises(AssertionError) as caught:
        assert_match(tmp_path / "fit" / "one", tmp_path / "fit" / "left-out")
    told = " ".join(str(caught.value).split())
    assert "rank 1 differs from rank 0 in gradient/sequential/dense_1/bias, step 0" in told
