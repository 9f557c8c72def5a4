"""Trainings with JAX that record themselves: what is seen, and what it changes."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from moved_numbers import assert_moved

import parity.jax
from parity import Trace
from parity.base.errors import UsageError
from parity.pair.perturbation import VARIABLE, environment

pytestmark = pytest.mark.jax

PAGE = Path(__file__).resolve().parent.parent / "docs" / "watching.md"


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
    np.testing.assert_array_equal(later["loss/loss"], plain[7])
    hidden = later["forward/stack.layers.0"]
    np.testing.assert_array_equal(later["forward/stack"], np.maximum(hidden, 0))
    np.testing.assert_array_equal(
        later["activation_gradient/stack.layers.0"],
        later["activation_gradient/stack"] * (hidden > 0),
    )


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
    (code,) = re.findall(r"```python\n(import jax\n.*?)```", text, re.DOTALL)
    with contextlib.redirect_stdout(None):
        exec(code, {})
    trace = Trace(tmp_path / "out" / "flax")
    assert trace.numbers() == list(range(20))
    assert {"forward/layers.0", "gradient/layers.1.scale"} <= trace.read(19).keys()
