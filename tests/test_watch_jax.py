"""Trainings with JAX that record themselves: what is seen, and what it changes."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from moved_numbers import assert_moved

import parity.jax
from parity import Trace, assert_match
from parity.base.errors import UsageError
from parity.pair.perturbation import VARIABLE, environment

pytestmark = pytest.mark.jax

PAGE = Path(__file__).resolve().parent.parent / "docs" / "watching.md"
SEEN = [  # of the page's trainings
    {"forward/layers.0", "gradient/layers.1.scale"},
    {"forward/layers_0", "gradient/layers_1.scale", "optimizer/layers_2.bias/mu"},
    {"forward/hidden", "activation_gradient/hidden", "gradient/v", "optimizer/w/nu"},
]


def model_of(recurrent=False):
    """Return a model, and an optimiser that clips."""
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(11, 6, rngs=rngs)
            self.rnn = nnx.RNN(nnx.SimpleCell(6, 6, rngs=rngs)) if recurrent else None
            self.stack = nnx.Sequential(nnx.Linear(6, 5, rngs=rngs), nnx.relu)
            self.norm = nnx.BatchNorm(5, rngs=rngs)
            self.drop = nnx.Dropout(0.3, rngs=rngs)
            self.out = nnx.Linear(5, 11, rngs=rngs)

        def __call__(self, tokens):
            hidden = self.embed(tokens)
            hidden = hidden if self.rnn is None else self.rnn(hidden)
            return self.out(self.drop(self.norm(self.stack(hidden))))

    model = Model(nnx.Rngs(1))
    rule = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01))
    return model, nnx.Optimizer(model, rule, wrt=nnx.Param)


def step_of(model, optimizer, tokens):
    import optax
    from flax import nnx

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(tokens), tokens).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def train(model, optimizer, steps, step=step_of):
    """Train, with an evaluation after each step; return the losses, and all values after."""
    from flax import nnx

    draw, losses = np.random.default_rng(3), []
    for _ in range(steps):
        tokens = draw.integers(0, 11, (3, 4))
        losses.append(np.asarray(step(model, optimizer, tokens)))
        model.eval()
        model(tokens)
        model.train()
    values = nnx.to_flat_state(nnx.state((model, optimizer), nnx.Not(nnx.RngKey)))
    return [*losses, *(np.asarray(value[...]) for _, value in values)]


def test_an_uncompiled_training_computes_the_same_and_is_seen_whole(tmp_path):
    plain = train(*model_of(), 20)
    model, optimizer = model_of()
    with parity.jax.watch(tmp_path / "a", model, optimizer):
        watched = train(model, optimizer, 20)
    assert all(np.array_equal(a, b) for a, b in zip(plain, watched, strict=True))
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == list(range(20))
    first, later = trace.read(0), trace.read(7)
    of = {
        rung: [name.removeprefix(f"{rung}/") for name in later if name.startswith(f"{rung}/")]
        for rung in (
            "batch",
            "forward",
            "activation_gradient",
            "gradient",
            "optimizer",
            "weight",
        )
    }
    modules = ["embed", "stack.layers.0", "stack", "norm", "drop", "out", "model"]
    assert (of["forward"], of["activation_gradient"]) == (modules, modules[::-1])
    layers = {"embed": ["embedding"], "norm": ["bias", "scale"]}
    trained = [
        f"{module}.{each}"
        for module in ("embed", "norm", "out", "stack.layers.0")
        for each in layers.get(module, ["bias", "kernel"])
    ]
    assert of["batch"] == ["0"]
    assert sorted(of["gradient"]) == trained
    assert sorted(of["weight"]) == sorted([*trained, "norm.mean", "norm.var"])
    assert {f"initial/{name}" for name in of["weight"]} <= first.keys()
    slots = {f"{name}/{slot}" for name in trained for slot in ("mu", "nu")}
    assert set(of["optimizer"]) == {*slots, "model/count", "model/step"}
    assert_clipped(first)
    np.testing.assert_array_equal(later["loss/loss"], plain[7])
    hidden = later["forward/stack.layers.0"]
    np.testing.assert_array_equal(later["forward/stack"], np.maximum(hidden, 0))
    np.testing.assert_array_equal(
        later["activation_gradient/stack.layers.0"],
        later["activation_gradient/stack"] * (hidden > 0),
    )


def clip(updates, state, params=None):
    """A rule by the name of one of optax's, but with a state."""
    return updates, state + 1


def test_a_rule_of_the_user_s_own_is_called_by_nobody_else(tmp_path):
    import optax
    from flax import nnx

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(1))
    own = optax.GradientTransformation(lambda _: np.zeros(1), clip)
    rule = optax.chain(own, optax.clip(0.1), optax.sgd(0.01))
    optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)
    with parity.jax.watch(tmp_path / "a", model, optimizer):
        gradients = nnx.grad(lambda model: model(np.ones((4, 3))).sum())(model)
        optimizer.update(model, gradients)
    tensors = Trace(tmp_path / "a").read(0)
    assert not any(name.startswith("clipped_") for name in tensors)
    assert tensors["optimizer/model/state"] == 1


KEPT = {
    "partition": {"kernel/mu", "kernel/nu", "bias/trace"},
    "sm3": {"kernel/mu", "kernel/mu#1", "kernel/nu", "bias/mu", "bias/nu"},
    "noisy_sgd": {"model/count", "model/rng_key"},
}


@pytest.mark.parametrize("rule", KEPT)
def test_what_rules_of_optax_keep_is_named_for_the_parameter(tmp_path, rule):
    import jax
    import optax
    from flax import nnx

    made = {
        "partition": lambda: optax.partition(
            {"w": optax.adam(0.1), "b": optax.sgd(0.1, momentum=0.9)},
            lambda tree: jax.tree.map(lambda x: "w" if x.ndim > 1 else "b", tree),
        ),
        "sm3": lambda: optax.sm3(0.1),
        "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=jax.random.key(1)),
    }
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, made[rule](), wrt=nnx.Param)
    with parity.jax.watch(tmp_path / "a", model, optimizer):
        gradients = nnx.grad(lambda model: model(np.ones((4, 3))).sum())(model)
        optimizer.update(model, gradients)
    found = {n.removeprefix("optimizer/") for n in Trace(tmp_path / "a").read(0) if "opt" in n}
    assert KEPT[rule] == {n for n in found if not n.startswith("model/inner_states")} - {
        "model/step"
    }


def train_in_parts(folder, parts, of_module, transformation):
    """Train on batches in parts: a module, of the parts' mean, or a function, of their sum.

    The watch begins after the first of several parts.
    """
    import jax
    import optax
    from flax import nnx

    rule = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01))
    if parts > 1:
        rule = optax.MultiSteps(rule, parts, use_grad_mean=of_module)
        rule = rule.gradient_transformation() if transformation else rule
    model, params = nnx.Linear(3, 2, rngs=nnx.Rngs(1)), {"w": jax.numpy.ones((3, 2))}
    optimizer, state = nnx.Optimizer(model, rule, wrt=nnx.Param), rule.init(params)
    batches = np.split(np.random.default_rng(3).normal(size=(24, 3)), 4 * parts)

    @nnx.jit
    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    def train(x, params, state):
        if of_module:
            step(model, optimizer, x)
            return params, state
        gradients = jax.grad(lambda params: ((x @ params["w"]) ** 2).sum())(params)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for x in batches[: parts // 3]:
        params, state = train(x, params, state)
    given = (model, optimizer) if of_module else (params, rule)
    with parity.jax.watch(folder, *given):
        for x in batches[parts // 3 :]:
            params, state = train(x, params, state)
    return Trace(folder)


@pytest.mark.parametrize("transformation", [True, False])
@pytest.mark.parametrize("of_module", [True, False])
def test_the_micro_batches_of_a_step_are_recorded_as_one_step(
    tmp_path, of_module, transformation
):
    kind = of_module, transformation
    whole, parts = (train_in_parts(tmp_path / str(n), n, *kind) for n in (1, 3))
    assert whole.numbers() == parts.numbers() == [0, 1, 2, 3]
    for number in whole.numbers():
        a, b = whole.read(number), parts.read(number)
        ending = ("gradient", "optimizer", "weight")
        names, expected = (
            {n for n in each if n.partition("/")[0] in ending} for each in (b, a)
        )
        assert names == expected - {"optimizer/model/step"}
        for name in names:
            np.testing.assert_allclose(b[name], a[name], 1e-4, 1e-6, err_msg=name)
    assert "forward/model#2" in b or not of_module
    assert parts.header["facts"]["optimizer"] == whole.header["facts"]["optimizer"]


def assert_clipped(first):
    """Check the clipped gradients by what Adam's first step made of them."""
    clipped = {n.partition("/")[2]: x for n, x in first.items() if n.startswith("clipped_")}
    assert {f"gradient/{n}" for n in clipped} == {n for n in first if n[:9] == "gradient/"}
    for name, array in clipped.items():
        np.testing.assert_allclose(first[f"optimizer/{name}/mu"], 0.1 * array, rtol=1e-6)
        assert np.abs(array).max() < np.abs(first[f"gradient/{name}"]).max()


@pytest.mark.parametrize("compiled", [False, True])
def test_every_number_is_moved(tmp_path, monkeypatch, compiled):
    from flax import nnx

    for _ in range(2):
        model, optimizer = model_of()
        step = nnx.jit(step_of) if compiled else step_of
        with parity.jax.watch(tmp_path / "a", model, optimizer):
            train(model, optimizer, 2, step)
        given = environment(tmp_path / "a", tmp_path / "b", 1)
        monkeypatch.setenv(VARIABLE, given[VARIABLE])
    assert_moved(tmp_path / "a", tmp_path / "b", "out")


def test_a_compiled_step_is_seen_alike_whether_or_not_it_was_compiled_before(tmp_path):
    from flax import nnx

    step = nnx.jit(step_of)
    model, optimizer = model_of(recurrent=True)
    before, after = model_of(recurrent=True), model_of(recurrent=True)
    plain = train(*before, 2, step)
    with parity.jax.watch(tmp_path, model, optimizer):
        watched = train(model, optimizer, 2, step)
    again = train(*after, 2, step)
    assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))  # nothing stays
    for a, b in zip(plain, watched, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)  # XLA rounds otherwise
    trace = Trace(tmp_path)
    assert trace.numbers() == [0, 1]
    tensors = trace.read(1)
    np.testing.assert_array_equal(tensors["loss/loss"], watched[1])
    states = [tensors[f"forward/rnn.cell{n}/0"] for n in ("", "#1", "#2", "#3")]  # time steps
    np.testing.assert_array_equal(np.stack(states, 1), tensors["forward/rnn"])
    below = tensors["activation_gradient/rnn"]
    np.testing.assert_array_equal(tensors["activation_gradient/rnn.cell#3/1"], below[:, 3])
    assert {
        "forward/stack.layers.0",
        "weight/norm.mean",
        "gradient/rnn.cell.dense_h.kernel",
    } <= (tensors.keys())


def linen_model():
    """Return a model of linen, and a function that makes the state it is trained from."""
    import jax
    import optax
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens, train=True):
            hidden = nn.RNN(nn.SimpleCell(6), name="rnn")(nn.Embed(11, 6)(tokens))
            hidden = nn.relu(nn.Dense(5, name="stack")(hidden))
            hidden = nn.BatchNorm(use_running_average=not train)(hidden)
            hidden = nn.Dropout(0.3, deterministic=not train)(hidden)
            return nn.Dense(11, name="out")(hidden)

    class State(TrainState):
        batch_stats: dict

    model = Model()
    rule = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01))
    variables = model.init(jax.random.key(1), np.zeros((3, 4), int), train=False)
    make = State.create
    return model, lambda: make(apply_fn=model.apply, tx=rule, **variables)


def linen_step(state, tokens, key):
    import jax
    import optax

    def loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        given = {"mutable": ["batch_stats"], "rngs": {"dropout": key}}
        logits, new = state.apply_fn(variables, tokens, **given)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
        return losses.mean(), new

    (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients, **new), value


@pytest.mark.parametrize("compiled", [False, True])
def test_linen_s_training_computes_the_same_and_is_seen_whole(tmp_path, compiled):
    import jax

    model, state_of = linen_model()
    step, steps = (jax.jit(linen_step), 3) if compiled else (linen_step, 1)

    def train_state(state):
        draw, losses = np.random.default_rng(3), []
        for number in range(steps):
            tokens = draw.integers(0, 11, (3, 4))
            state, loss = step(state, tokens, jax.random.key(number))
            variables = {"params": state.params, "batch_stats": state.batch_stats}
            model.apply(variables, tokens, train=False)
            losses.append(np.asarray(loss))
        return [*losses, *map(np.asarray, jax.tree.leaves(state))]

    plain, state = train_state(state_of()), state_of()
    with parity.jax.watch(tmp_path, model, state):
        watched = train_state(state)
    again = train_state(state_of())
    assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))  # nothing stays
    for a, b in zip(plain, watched, strict=True):
        np.testing.assert_allclose(a, b, 0, 1e-5 if compiled else 0)  # XLA rounds otherwise
    trace = Trace(tmp_path)
    assert trace.numbers() == list(range(steps))
    tensors = trace.read(steps - 1)
    np.testing.assert_array_equal(tensors["loss/loss"], watched[steps - 1])
    cells = {"SimpleCell_0.h.kernel", "SimpleCell_0.i.bias", "SimpleCell_0.i.kernel"}
    layers = {"BatchNorm_0.bias", "BatchNorm_0.scale", "Embed_0.embedding"}
    dense = {f"{name}.{role}" for name in ("out", "stack") for role in ("bias", "kernel")}
    trained = cells | layers | dense
    slots = {f"{name}/{slot}" for name in trained for slot in ("mu", "nu")}
    weights = trained | {"BatchNorm_0.mean", "BatchNorm_0.var"}
    assert_clipped(trace.read(0))
    for rung, names in (
        ("batch", {"0"}),
        ("gradient", trained),
        ("optimizer", slots | {"model/count", "model/step"}),
        ("weight", weights),
    ):
        of = {name for name in tensors if name.startswith(f"{rung}/")}
        assert of == {f"{rung}/{name}" for name in names}
    assert {f"initial/{name}" for name in weights} <= trace.read(0).keys()
    states = [tensors[f"forward/SimpleCell_0{n}/0"] for n in ("", "#1", "#2", "#3")]
    np.testing.assert_array_equal(np.stack(states, 1), tensors["forward/rnn"])
    outputs = {"Embed_0", "rnn", "stack", "BatchNorm_0", "Dropout_0", "out", "model"}
    for rung in ("forward", "activation_gradient"):
        assert {f"{rung}/{name}" for name in outputs} <= tensors.keys()
    assert "forward/out#1" not in tensors  # the evaluation


def test_a_function_is_seen_where_it_is_tapped(tmp_path):
    import jax
    import optax

    def loss(params, x):
        hidden = parity.jax.tap("hidden", jax.numpy.tanh(x @ params["w"]))
        return (parity.jax.tap("out", {"y": hidden @ params["v"]})["y"] ** 2).mean()

    @jax.jit
    def step(params, state, x):
        gradients = jax.grad(loss)(params, x)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    rule = optax.adam(0.1)
    params = {"w": np.ones((4, 3), np.float32), "v": np.ones(3, np.float32)}
    state, x = rule.init(params), np.ones((2, 4), np.float32)
    step(params, state, x)  # compiled before
    with parity.jax.watch(tmp_path, params, rule):
        for _ in range(2):
            params, state = step(params, state, x)
    tensors = Trace(tmp_path).read(1)
    slots = {f"optimizer/{name}/{slot}" for name in "vw" for slot in ("mu", "nu")}
    assert tensors.keys() == {
        *("forward/hidden", "forward/out/y", "loss/loss", "optimizer/model/count"),
        *("activation_gradient/hidden", "activation_gradient/out/y"),
        *(f"{rung}/{name}" for rung in ("gradient", "weight") for name in "vw"),
        *slots,
    }
    np.testing.assert_array_equal(tensors["weight/w"], params["w"])
    hidden, below = tensors["forward/hidden"], tensors["activation_gradient/hidden"]
    np.testing.assert_allclose(tensors["gradient/w"], x.T @ (below * (1 - hidden**2)), 1e-5)
    assert parity.jax.tap("hidden", x) is x  # nothing is watched


DEVICES = """
import os
import sys
import jax
import keras
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec
import parity.jax
import parity.keras
from parity.base.errors import UsageError

x = np.random.default_rng(1).normal(size=(24, 4))
model = nn.Sequential([nn.Dense(8, param_dtype=float), nn.tanh, nn.Dense(2, param_dtype=float)])
rule = optax.adam(0.1)

def train(folder, place, wrap=jax.jit, mean=lambda gradients: gradients):
    params = model.init(jax.random.key(1), x)["params"]
    state = place(TrainState.create(apply_fn=model.apply, params=params, tx=rule))
    def step(state, x):
        loss = lambda params: (state.apply_fn({"params": params}, x) ** 2).mean()
        return state.apply_gradients(grads=mean(jax.value_and_grad(loss)(state.params)[1]))
    step = wrap(step)
    with parity.jax.watch(folder, model, state):
        for rows in x.reshape(3, 8, 4):
            state = step(state, place(rows, "rows"))

def fit(folder):
    keras.utils.set_random_seed(1)
    layers = keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", loss="mse")
    with parity.keras.watch(folder, model):
        model.fit(x, x[:, :2], 8, shuffle=False, verbose=0)
    assert len(model.weights[0].value.sharding.device_set) == 1 + folder.endswith("two")

def shared(value, *axes):
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes)))

def by_rank(step):
    own = PartitionSpec(), PartitionSpec("rows")
    return jax.jit(jax.shard_map(
        step, mesh=mesh, in_specs=own, out_specs=PartitionSpec(), check_vma=False))

def mean(gradients):
    return jax.lax.pmean(gradients, "rows")

def left_out(gradients):
    kernel, bias = gradients["layers_2"]["kernel"], gradients["layers_2"]["bias"]
    layer = {"kernel": mean(kernel), "bias": bias}
    return {"layers_0": mean(gradients["layers_0"]), "layers_2": layer}

def gathered(gradients):
    return jax.tree.map(lambda each: process_allgather(each).mean(0), gradients)

def told(function, *arguments):
    try:
        function(*arguments)
    except UsageError as error:
        print(error)

if given := sys.argv[1:]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    rank = int(given[1])
    jax.distributed.initialize(f"localhost:{given[0]}", 2, rank)
    told(fit, "a")
    if jax.local_device_count() == 2:
        told(train, "a", lambda value, *axes: value)
        sys.exit()
mesh = jax.make_mesh((2,), ("rows",))
if given:
    train("ranks/compiled", shared, by_rank, mean)
    train("ranks/left-out", shared, by_rank, left_out)
    dealt = lambda value, *axes: value[rank::2] if axes else value
    train("ranks/uncompiled", dealt, lambda step: step, gathered)
    told(train, "a", shared)
else:
    keras.config.set_floatx("float64")
    train("jax/one", lambda value, *axes: value)
    train("jax/two", shared)
    fit("keras/one")
    keras.utils.clear_session()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    fit("keras/two")
"""


def test_two_devices_and_two_processes_are_compared_with_one(tmp_path):
    def started(devices, *arguments):
        flags = f"--xla_force_host_platform_device_count={devices}"
        given = {"XLA_FLAGS": flags, "JAX_ENABLE_X64": "1"}
        given |= {"PYTHONPATH": str(PAGE.parent.parent), "KERAS_BACKEND": "jax"}
        return subprocess.Popen(
            [sys.executable, "-c", DEVICES, *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | given,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(devices):
        """Return what each of two processes says."""
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
        processes = [started(devices, port, rank) for rank in range(2)]
        said = [process.communicate()[0].splitlines() for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        # gloo prints there, too
        said = [[each for each in lines if not each.startswith("[Gloo]")] for lines in said]
        for lines in said:
            assert lines.pop(0).startswith("2 processes of jax.distributed train; allowed: one")
        return said

    for (said,) in told(devices=2):
        assert said.startswith(
            "2 processes of jax.distributed have 2 devices each; allowed: one"
        )
    zero, (one,) = told(devices=1)
    assert not zero
    assert one.startswith("no step was shown to this process: rank 0 alone sees arrays")
    assert started(2).wait() == 0
    for training in ("compiled", "uncompiled"):
        report = assert_match(tmp_path / "jax" / "one", tmp_path / "ranks" / training)
        assert (report["dtype"], report["steps"], report["only"]) == ("float64", 3, {})
    with pytest.raises(AssertionError) as caught:
        assert_match(tmp_path / "jax" / "one", tmp_path / "ranks" / "left-out")
    named = "rank 1 differs from rank 0 in gradient/layers_2.bias, step 0, of jax"
    assert named in " ".join(str(caught.value).split())
    for training in ("jax", "keras"):
        report = assert_match(tmp_path / training / "one", tmp_path / training / "two")
        assert (report["dtype"], report["steps"], report["only"]) == ("float64", 3, {})


def test_what_cannot_be_seen_is_told_in_a_sentence(tmp_path):
    from flax import nnx

    def told(model, optimizer, run=lambda: None, **options):
        with (
            pytest.raises(UsageError) as caught,
            parity.jax.watch(tmp_path, model, optimizer, **options),
        ):
            run()
        return str(caught.value)

    model, optimizer = model_of()
    assert told(None, optimizer).startswith("model is NoneType; allowed: a flax.nnx.Module")
    assert told(model, None).startswith("optimizer is NoneType; allowed: a flax.nnx.Optimizer")
    assert told(model, optimizer).startswith("no update of the optimizer was seen")
    linen, state = linen_model()
    assert told(linen, optimizer).startswith("optimizer is Optimizer; allowed: a TrainState")
    assert told({}, None).startswith("optimizer is NoneType; allowed: an optax.Gradient")
    assert told(linen, state()).startswith("no update of the optimizer was seen; allowed: st")
    graph, state = nnx.split(model)
    gradients = nnx.state(model, nnx.Param)

    def split():
        optimizer.update(nnx.merge(graph, state), gradients)

    assert told(model, optimizer, split).startswith("no module of the model was called")
    fits = {"names": {"nothing": "b"}}
    run = nnx.jit(step_of)
    tokens = np.zeros((3, 4), int)
    said = told(model, optimizer, lambda: run(model, optimizer, tokens), **fits)
    assert said == "step 0: no tensor of the name map's 'nothing'"


def test_the_page_s_lines_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    codes = re.findall(r"```python\n([^`]*?parity\.jax\.watch.*?)```", text, re.DOTALL)
    for code, folder, names in zip(codes, ("flax", "linen", "function"), SEEN, strict=True):
        with contextlib.redirect_stdout(None):
            exec(code, {})
        trace = Trace(tmp_path / "out" / folder)
        assert trace.numbers() == list(range(20))
        assert names <= trace.read(19).keys()
