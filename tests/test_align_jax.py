"""A training in PyTorch and its port to flax's nnx: aligned, and its weights carried over."""

import numpy as np
import pytest

import parity.jax
import parity.torch
from parity import Trace
from parity.align.mapping import read
from parity.align.traps import traps
from parity.cli.command_line import main
from parity.cli.commands import parity as command

pytestmark = [pytest.mark.jax, pytest.mark.torch]

IMAGES = np.random.default_rng(1).random((4, 1, 8, 6))


def in_torch(folder):
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(4)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            seen = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
            return self.out(self.attention(seen, seen, seen)[0])

    torch.manual_seed(1)
    model = Model().double()
    model.norm.running_mean += 1  # carried over, too
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with parity.torch.watch(folder, model, optimizer):
        (model(torch.tensor(IMAGES)) ** 2).mean().backward()
        optimizer.step()


def in_jax(folder, weights=None, steps=1, *, state=False, rate=0.01):
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self):
            given = {"rngs": nnx.Rngs(1), "param_dtype": np.float64}
            self.out = nnx.Linear(4, 3, **given)
            self.conv = nnx.Conv(1, 4, (3, 3), use_bias=False, **given)
            self.norm = nnx.BatchNorm(4, momentum=0.99, **given)
            self.attention = nnx.MultiHeadAttention(2, 4, decode=False, **given)

        def __call__(self, x):
            seen = self.norm(self.conv(x)).reshape(4, 48, 4)
            return self.out(self.attention(seen))

    model = Model()
    optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
    if weights is not None:
        parity.jax.load(model, weights, optimizer if state else None)
    with parity.jax.watch(folder, model, optimizer):
        x = np.moveaxis(IMAGES, 1, 3)
        for _ in range(steps):
            _, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
            optimizer.update(model, gradients)


def in_linen(folder, weights=None):
    import jax
    import optax
    from flax import linen as nn
    from flax.training.train_state import TrainState

    class State(TrainState):
        batch_stats: dict

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3), use_bias=False, param_dtype=np.float64, name="conv")(x)
            x = nn.BatchNorm(False, param_dtype=np.float64, name="norm")(x).reshape(4, 48, 4)
            attention = nn.MultiHeadDotProductAttention(2, param_dtype=np.float64, name="seen")
            return nn.Dense(3, param_dtype=np.float64, name="head")(attention(x))

    model, x = Model(), np.moveaxis(IMAGES, 1, 3)
    variables = model.init(jax.random.key(1), x)
    state = State.create(apply_fn=model.apply, tx=optax.adam(0.01, b1=0.8), **variables)
    if weights is not None:
        state = parity.jax.load(state, weights)

    def loss(params, stats):
        given = {"params": params, "batch_stats": stats}
        out, new = state.apply_fn(given, x, mutable=["batch_stats"])
        return (out**2).mean(), new

    with parity.jax.watch(folder, model, state):
        grad = jax.jit(jax.grad(loss, has_aux=True))
        gradients, new = grad(state.params, state.batch_stats)
        state = state.apply_gradients(grads=gradients, **new)


@pytest.fixture
def double():
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("in_jax", [in_jax, in_linen])
def test_a_port_to_jax_takes_over_the_weights(tmp_path, in_jax):
    original, own, port = (tmp_path / name for name in ("original", "own", "port"))
    file, weights = tmp_path / "map.yaml", tmp_path / "weights"
    in_torch(original)
    in_jax(own)
    assert main(command, ["align", str(original), str(own), "-o", str(file)]) == 0
    words = ["--map", str(file), "-o", str(weights)]
    assert main(command, ["weights", str(original), *words]) == 0
    in_jax(port, weights)
    assert main(command, ["align", str(original), str(port), "-o", str(file)]) == 0
    mapping = read(file)
    kinds = [row.kind for row in mapping.rows]
    assert kinds == ["batch", "conv", "batchnorm", "attention", "linear", "model"]
    assert mapping.slots == {"exp_avg": ("exp_avg", "mu"), "exp_avg_sq": ("exp_avg_sq", "nu")}
    for row in mapping.rows:
        assert row.use
        assert not row.parameters or "initial weights equal" in row.why
        assert row.kind == "batch" or "outputs agree" in row.why
    traces = Trace(original), Trace(port)
    a, b = (each.read(0) for each in mapping.mapped(traces))
    for name in ("conv", "norm"):  # flax has a constant of float32 in its attention
        np.testing.assert_allclose(a[f"forward/{name}"], b[f"forward/{name}"], 1e-11, 1e-12)
    assert {each.what: each.values for each in traps(traces)} == {
        "momentum": ("0.9", "0.99"),
        "attention is computed in": ("float64", "float32"),
        "divisor of the moving variance": ("n - 1", "n"),
        **({"beta1": ("0.9", "0.8")} if in_jax is in_linen else {}),
    }


def test_a_rule_of_optax_says_what_it_was_made_with(tmp_path):
    import jax
    import optax

    def told(rule):
        params = {"w": np.ones(2, np.float32)}
        with parity.jax.watch(tmp_path, params, rule):
            state = rule.init(params)
            updates, _ = rule.update(jax.grad(lambda p: p["w"].sum())(params), state, params)
            optax.apply_updates(params, updates)
        facts = Trace(tmp_path).header["facts"]["optimizer"]
        return facts["kind"], facts["settings"]

    adam = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "eps_root": 0.0}
    decayed = optax.adamw(0.5, mask=lambda params: {"w": True})
    clipped = optax.chain(optax.clip_by_global_norm(1.0), decayed)
    assert told(clipped) == ("adamw", {**adam, "weight_decay": 1e-4, "learning_rate": 0.5})
    l2 = optax.chain(optax.add_decayed_weights(0.1), optax.adam(optax.constant_schedule(1.0)))
    assert told(l2) == ("adam", {**adam, "weight_decay": 0.1})
    sgd = optax.sgd(0.5, momentum=0.8)
    assert told(sgd) == ("sgd", {"momentum": 0.8, "nesterov": False, "learning_rate": 0.5})
    rms = {"rho": 0.9, "epsilon": 1e-8, "eps_in_sqrt": True, "bias_correction": False}
    assert told(optax.rmsprop(0.5)) == ("rmsprop", {**rms, "learning_rate": 0.5})
    frozen = optax.masked(optax.adam(0.5), {"w": False})
    for other in (frozen, optax.lion(0.5), optax.chain(optax.sgd(0.5), optax.scale(2.0))):
        assert told(other) == ("optax", {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            {"epsilon is added": (("to the root", "below the root"), "eps_in_sqrt=False")},
        ),
        ({"eps_in_sqrt": False}, {}),
        (
            {"eps_in_sqrt": False, "bias_correction": True},
            {"bias_correction": (("False", "True"), "bias_correction=False")},
        ),
    ],
)
def test_where_rmsprop_of_optax_adds_epsilon_is_told(tmp_path, given, expected):
    import optax
    import torch
    from flax import nnx

    x = np.ones((2, 3), np.float32)
    model = torch.nn.Linear(3, 2)
    rule = torch.optim.RMSprop(model.parameters(), 0.01, alpha=0.9)
    with parity.torch.watch(tmp_path / "a", model, rule):
        (model(torch.tensor(x)) ** 2).mean().backward()
        rule.step()
    port = nnx.Linear(3, 2, rngs=nnx.Rngs(1))
    update = nnx.Optimizer(port, optax.rmsprop(0.01, **given), wrt=nnx.Param)
    with parity.jax.watch(tmp_path / "b", port, update):
        update.update(port, nnx.grad(lambda port: (port(x) ** 2).mean())(port))
    traces = [Trace(tmp_path / "a"), Trace(tmp_path / "b")]
    found = {each.what: (each.values, each.fix) for each in traps(traces) if each.values}
    assert found == expected
    back = {each.what: each.fix for each in traps(traces[::-1]) if each.values}
    assert back == {what: f"{fix} in jax" for what, (_, fix) in expected.items()}


def decayed(mask, module):
    """Return which parameters decay, by the facts of a step of a linen or nnx module."""
    import jax
    import optax
    from flax import linen, nnx
    from flax.training.train_state import TrainState

    rule, x = optax.adamw(0.5, weight_decay=0.1, mask=mask), np.ones((2, 3), np.float32)
    if module == "nnx":
        model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
        update = nnx.Optimizer(model, rule, wrt=nnx.Param)
        with parity.jax.watch("out", model, update):
            update.update(model, nnx.grad(lambda each: each(x).sum())(model))
    else:
        model = linen.Sequential([linen.Dense(4)])
        params = model.init(jax.random.key(1), x)["params"]
        given = TrainState.create(apply_fn=model.apply, params=params, tx=rule)
        with parity.jax.watch("out", model, given):
            loss = jax.grad(lambda each: given.apply_fn({"params": each}, x).sum())
            given.apply_gradients(grads=loss(params))
    facts = Trace("out").header["facts"]
    groups = facts["optimizers"] or [facts["optimizer"] | {"parameters": ["all"]}]
    return [(each["settings"]["weight_decay"], each["parameters"]) for each in groups]


@pytest.mark.parametrize(
    ("module", "kernel", "bias"),
    [
        ("nnx", "layers.0.kernel", "layers.0.bias"),
        ("linen", "layers_0.kernel", "layers_0.bias"),
    ],
)
def test_a_mask_of_optax_says_which_weights_decay(tmp_path, monkeypatch, module, kernel, bias):
    import jax

    monkeypatch.chdir(tmp_path)
    several = jax.tree_util.Partial(jax.tree.map, lambda each: each.ndim > 1)
    assert decayed(several, module) == [(0.1, [kernel]), (0.0, [bias])]
    for each in (True, False):
        assert decayed(lambda _, each=each: each, module) == [(0.1 * each, ["all"])]
    if module == "linen":  # a tree, of a whole module or of each parameter
        assert decayed({"layers_0": {"kernel": False, "bias": True}}, module)[1][1] == [kernel]
        assert decayed({"layers_0": False}, module) == [(0.0, ["all"])]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("rate", [0.01, lambda step: 0.01 / (1 + step)])
def test_a_training_in_jax_goes_on_as_if_it_had_not_stopped(tmp_path, rate):
    whole, rest, file, weights = (tmp_path / name for name in ("whole", "rest", "map", "w"))
    in_jax(whole, steps=3, rate=rate)
    assert main(command, ["align", str(whole), str(whole), "-o", str(file)]) == 0
    words = ["--map", str(file), "--after", "0", "-o", str(weights)]
    assert main(command, ["weights", str(whole), *words]) == 0
    in_jax(rest, weights, steps=2, state=True, rate=rate)
    for step, tensors in Trace(rest).steps():
        expected = Trace(whole).read(step + 1)
        for name, array in tensors.items():
            if not name.startswith("initial/"):
                np.testing.assert_array_equal(array, expected[name], name, strict=True)
