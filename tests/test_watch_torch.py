"""PyTorch trainings that record themselves: what is seen, and that it changes nothing."""

import contextlib
import dataclasses
import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from moved_numbers import assert_moved

import parity.torch
from parity import Trace
from parity.base.errors import UsageError
from parity.compare.recorded_pair import compare_pair
from parity.pair.perturbation import VARIABLE, environment
from parity.report.terminal import report_text
from parity.report.values import found_for

pytestmark = pytest.mark.torch


@dataclasses.dataclass
class Answer:
    logits: object
    nothing: object = None


PAGE = Path(__file__).resolve().parent.parent / "docs" / "watching.md"


def model_of(dtype="float32", checkpoint=None):
    """Return a model with tied weights, packed rows, an operation in place, a dataclass."""
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    from torch.utils.checkpoint import checkpoint as again

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(11, 6)
            self.rnn = torch.nn.LSTM(6, 6, batch_first=True)
            self.inner = torch.nn.Linear(6, 6)
            self.relu = torch.nn.ReLU(inplace=True)
            self.norm = torch.nn.BatchNorm1d(6)
            self.out = torch.nn.Linear(6, 11, bias=False)
            self.out.weight = self.embed.weight
            self.same = torch.nn.Identity()

        def forward(self, tokens, *, lengths):
            packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
            hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            if checkpoint is None:
                hidden = self.relu(self.inner(hidden))
            else:
                hidden = again(
                    lambda x: self.relu(self.inner(x)), hidden, use_reentrant=checkpoint
                )
            hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
            return Answer(self.same(self.out(hidden)))

    torch.manual_seed(1)
    return Model().to(getattr(torch, dtype))


def train(model, optimizer, steps=3, micro=1, evaluate=True):
    """Train; return the losses and the weights after the last step."""
    import torch

    draw, losses = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            tokens = torch.randint(0, 11, (3, 5), generator=draw)
            logits = model(tokens, lengths=torch.tensor([5, 5, 4])).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            losses.append(loss.detach().clone())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if evaluate:
            with torch.no_grad():
                model(tokens, lengths=torch.tensor([5, 5, 5]))
    return [*losses, *(each.detach().clone() for each in model.state_dict().values())]


def watched(folder, *, dtype="float32", checkpoint=None, compiled=None, options=None, **how):
    """Train a new model while it is watched; return what `train` does, and the trace."""
    import torch

    model = model_of(dtype, checkpoint)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    called = torch.compile(model, backend=compiled) if compiled else model
    with parity.torch.watch(folder, called, optimizer, **(options or {})):
        result = train(called, optimizer, **how)
    return result, Trace(folder)


MODULES = ["embed", "rnn/0/data", "inner", "relu", "norm", "out", "model/logits"]


@pytest.mark.parametrize("compiled", [None, "eager"])
def test_what_is_watched_computes_the_same_and_is_seen_whole(tmp_path, compiled):
    import torch

    found, trace = watched(tmp_path / "a", compiled=compiled, steps=20)
    model = model_of()
    plain = train(model, torch.optim.Adam(model.parameters(), lr=0.01), steps=20)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert trace.numbers() == list(range(20))
    first, later = trace.read(0), trace.read(7)
    assert [n for n in later if n.startswith(("batch/", "loss/"))] == [
        "batch/0",
        "batch/lengths",
        "loss/loss",
    ]
    outputs = [n.removeprefix("forward/") for n in later if n.startswith("forward/")]
    assert [name for name in outputs if name in MODULES] == MODULES
    parameters = [name for name, _ in model.named_parameters()]
    for rung in ("gradient", "clipped_gradient"):
        assert [n for n in later if n.startswith(f"{rung}/")] == [
            f"{rung}/{each}" for each in parameters
        ]
    kept = {*parameters, *(name for name, _ in model.named_buffers())}
    for rung, tensors in (("weight", later), ("initial", first)):
        assert {n.removeprefix(f"{rung}/") for n in tensors if n.startswith(rung)} == kept
    slots = {
        f"optimizer/{n}/{s}" for n in parameters for s in ("exp_avg", "exp_avg_sq", "step")
    }
    assert {name for name in later if name.startswith("optimizer/")} == slots
    assert not any(name.startswith("initial/") for name in later)
    for n, each in model.state_dict().items():
        if n in parameters:
            np.testing.assert_array_equal(trace.read(19)[f"weight/{n}"], each.numpy())
    np.testing.assert_array_equal(trace.read(3)["loss/loss"], plain[3].numpy())
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    made = next(n for n, line in enumerate(lines, 1) if "self.inner = " in line)
    for name in ("forward/inner", "gradient/inner.weight", "optimizer/inner.bias/step"):
        source = found_for(name, trace.sources)
        assert source.endswith(f"test_watch_torch.py:{made} (Model: self.inner)")


def test_a_tensor_is_what_it_was_before_an_operation_in_place(tmp_path):
    _, trace = watched(tmp_path / "a")
    tensors = trace.read(0)
    inner, relu = tensors["forward/inner"], tensors["forward/relu"]
    assert inner.min() < 0
    np.testing.assert_array_equal(np.maximum(inner, 0), relu)
    gradient = tensors["activation_gradient/relu"] * (inner > 0)
    np.testing.assert_array_equal(tensors["activation_gradient/inner"], gradient)
    norm = np.sqrt(sum((tensors[n] ** 2).sum() for n in tensors if n.startswith("gradient/")))
    np.testing.assert_allclose(
        tensors["clipped_gradient/inner.bias"],
        tensors["gradient/inner.bias"] * (0.1 / norm),
        rtol=1e-4,
    )


@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_is_computed_again_in_the_backward_pass_is_seen_once(tmp_path, checkpoint):
    _, plain = watched(tmp_path / "a")
    _, trace = watched(tmp_path / "b", checkpoint=checkpoint)
    expected, found = plain.read(1), trace.read(1)
    assert set(found) - set(expected) == set()
    lost = (
        set() if not checkpoint else {"activation_gradient/inner", "activation_gradient/relu"}
    )
    assert set(expected) - set(found) == lost
    for name, each in found.items():
        np.testing.assert_array_equal(each, expected[name], err_msg=name)


def test_an_output_without_a_gradient_has_none(tmp_path):
    """As cuDNN's recurrent layers give an output that nothing used no gradient."""
    import torch

    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x / 2, x / 2

        @staticmethod
        def backward(ctx, *gradients):
            return sum(each / 2 for each in gradients if each is not None)

    class Model(torch.nn.Linear):
        def forward(self, x):
            return Halves.apply(super().forward(x))

    model = Model(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with parity.torch.watch(tmp_path / "run", model, optimizer):
        model(torch.ones(4, 3))[0].sum().backward()
        optimizer.step()
    names = [each for each in Trace(tmp_path / "run").read(0) if "activation" in each]
    assert names == ["activation_gradient/model/0"]


def test_micro_batches_are_told_apart(tmp_path):
    _, trace = watched(tmp_path / "a", micro=2)
    tensors = trace.read(1)
    for name in ("batch/0", "batch/lengths", "forward/inner", "loss/loss", "forward/embed"):
        assert name in tensors
        assert f"{name}#1" in tensors
        assert f"{name}#2" not in tensors
    assert "activation_gradient/inner#1" in tensors
    assert "gradient/inner.weight#1" not in tensors


def test_half_precision_is_recorded_as_the_float32_of_the_same_value(tmp_path):
    import torch

    found, trace = watched(tmp_path / "a", dtype="bfloat16")
    tensors = trace.read(2)
    assert tensors["weight/inner.weight"].dtype == np.float32
    names = list(model_of().state_dict())
    weight = found[3 + names.index("inner.weight")]
    assert weight.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensors["weight/inner.weight"], weight.float().numpy())
    header = json.loads((trace.folder / "trace.json").read_text())
    assert header["facts"]["parameters"] == ["bfloat16"]
    assert header["versions"]["torch"] == torch.__version__
    assert header["dtype"] == "float32"


def test_every_number_is_moved_in_steps_that_are_not_recorded_too(tmp_path, monkeypatch):
    some = {"modules": ["out", "same", "model"], "steps": 2}
    watched(tmp_path / "a", options=some)
    monkeypatch.setenv(VARIABLE, environment(tmp_path / "a", tmp_path / "b", 1)[VARIABLE])
    result, _ = watched(tmp_path / "a", options=some)
    assert_moved(tmp_path / "a", tmp_path / "b", "out", "same", steps=(0, 2))
    monkeypatch.delenv(VARIABLE)
    plain, _ = watched(tmp_path / "c", options=some)
    assert result[1] != plain[1]


def test_an_output_that_only_a_module_within_hands_on_is_moved_once(tmp_path, monkeypatch):
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.pooler = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            hidden = self.hidden(x)
            return {"hidden": hidden, "pooled": self.pooler(hidden)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.out = Pooled(), torch.nn.Linear(3, 1)

        def forward(self, x):
            return self.out(self.net(x)["pooled"])

    def trained():
        torch.manual_seed(1)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with parity.torch.watch(tmp_path / "a", model, optimizer):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    trained()
    monkeypatch.setenv(VARIABLE, environment(tmp_path / "a", tmp_path / "b", 1)[VARIABLE])
    trained()
    plain, moved = Trace(tmp_path / "a").read(0), Trace(tmp_path / "b").read(0)
    assert plain.keys() == moved.keys()
    for rung in ("forward", "activation_gradient"):
        outer, inner = (moved[f"{rung}/net{name}"] for name in ("/hidden", ".hidden"))
        assert np.array_equal(outer, inner) == (rung == "forward")


def trained_linear(folder, change=lambda parameters: None, kind=None):
    """Train a linear layer for two steps, its gradients changed; return the trace."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = (kind or torch.optim.SGD)(model.parameters(), 0.1)
    with parity.torch.watch(folder, model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.arange(12.0).reshape(4, 3)) ** 2).mean().backward()
            change(list(model.parameters()))
            optimizer.step()
    return Trace(folder)


CLIPPED = {
    "in place": lambda gradient: gradient.clamp_(-1e-3, 1e-3),
    "of its data": lambda gradient: gradient.data.clamp_(-1e-3, 1e-3),
    "by no limit that it reaches": lambda gradient: gradient.clamp_(-1e9, 1e9),
}


@pytest.mark.parametrize("how", CLIPPED)
def test_what_changes_a_gradient_is_seen_and_what_does_not_is_no_difference(tmp_path, how):
    def change(parameters):
        for each in parameters:
            CLIPPED[how](each.grad)

    reached = how != "by no limit that it reaches"
    tensors = trained_linear(tmp_path / "a", change).read(1)
    assert ("clipped_gradient/weight" in tensors) == reached
    trained_linear(tmp_path / "b")
    if reached:
        with pytest.raises(AssertionError):
            parity.assert_match(tmp_path / "a", tmp_path / "b")
    else:
        parity.assert_match(tmp_path / "a", tmp_path / "b")


def test_a_match_counts_the_settings_that_are_apart(tmp_path):
    """A decay by a small rate is less than rounding may do."""
    import torch

    for name, decay in (("a", 0.1), ("b", 0.0)):
        kind = partial(torch.optim.SGD, weight_decay=decay)
        trained_linear(tmp_path / name, kind=lambda each, _, kind=kind: kind(each, 1e-6))
    report = parity.assert_match(tmp_path / "a", tmp_path / "b")
    assert report["settings_apart"] == ["decay 0.1 → 0"]
    text = report_text(report)
    assert "verdict: match, with 1 setting apart" in text
    assert "that no tensor shows: decay 0.1 → 0." in " ".join(text.split())


def test_a_step_that_calls_that_of_its_base_is_one(tmp_path):
    import torch

    class Halved(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD([torch.zeros(1)])  # from then on PyTorch calls hooks in both
    assert trained_linear(tmp_path / "a", kind=Halved).numbers() == [0, 1]


def test_after_a_step_that_failed_the_next_is_recorded(tmp_path):
    import torch

    def closure():
        if fails:
            raise RuntimeError("out of memory")
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).sum()
        loss.backward()
        return loss

    fails, model = False, torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with parity.torch.watch(tmp_path / "a", model, optimizer):
        optimizer.step(closure)
        fails = True
        with contextlib.suppress(RuntimeError):
            optimizer.step(closure)
        fails = False
        optimizer.step(closure)
    assert Trace(tmp_path / "a").numbers() == [0, 1]


@pytest.mark.filterwarnings("error::UserWarning")  # that the model itself was not called
def test_a_closure_is_part_of_its_step(tmp_path):
    import torch

    torch.manual_seed(1)
    model, x = torch.nn.Linear(3, 2), torch.arange(12.0).reshape(4, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        found.append(model.weight.grad.numpy().copy())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        return loss

    found = []
    with parity.torch.watch(tmp_path / "a", model, optimizer):
        optimizer.step(closure)
        optimizer.step(closure=closure)
    tensors = Trace(tmp_path / "a").read(1)
    for each in ("loss/loss", "forward/model#1", "weight/bias"):
        assert each in tensors
    np.testing.assert_array_equal(tensors["gradient/weight"], found[-1])
    clipped = model.weight.grad.numpy()
    np.testing.assert_array_equal(tensors["clipped_gradient/weight"], clipped)
    assert np.abs(clipped).max() < np.abs(found[-1]).max()


def test_a_user_chooses_steps_modules_and_rungs(tmp_path):
    _, every = watched(tmp_path / "a", steps=5, options={"steps": 2})
    assert every.numbers() == [0, 2, 4]
    _, some = watched(tmp_path / "b", steps=5, options={"steps": range(1, 3)})
    assert some.numbers() == [1, 2]
    whole, part = every.read(2), some.read(2)
    assert whole.keys() == part.keys()
    rungs = {"modules": ["in*"], "rungs": ["forward", "loss"], "names": {"inner": "dense"}}
    _, few = watched(tmp_path / "c", options=rungs | {"run": {"rate": 1}, "side": "mine"})
    assert list(few.read(1)) == ["forward/dense", "loss/loss"]
    assert (few.header["run"], few.side.framework) == ({"rate": 1}, "mine")


BAD = {
    "steps": ({"steps": 0}, "steps is 0; allowed: a number from 1, a range, or None"),
    "ranks": ({"ranks": (2, 2)}, "ranks is (2, 2); allowed: a rank, from 0, and their number"),
    "no ranks": ({"ranks": "1/2"}, "ranks is '1/2'; allowed: a rank, from 0, and their number"),
    "rungs": ({"rungs": ["forwards"]}, "rungs holds 'forwards'; allowed: batch, initial"),
    "modules": ({"modules": "fc"}, "modules is 'fc'; allowed: a list of texts"),
    "no step": ({"steps": range(7, 9)}, "no step was recorded: `steps` chooses none of "),
    "no module": (
        {"modules": ["in*", "fc"]},
        "modules holds 'fc'; allowed: model, embed, rnn,",
    ),
    "names": ({"names": {"fc.weight": "a"}}, "no tensor of the name map's 'fc.weight'"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_option_that_is_not_allowed_is_refused(tmp_path, case):
    options, message = BAD[case]
    with pytest.raises(UsageError) as caught:
        watched(tmp_path / "a", options=options)
    assert message in str(caught.value)


def test_an_optimizer_that_does_not_train_is_no_watch(tmp_path):
    import torch

    layer = torch.nn.Linear(3, 2)
    trains, other = (torch.optim.SGD(layer.parameters(), 0.1) for _ in range(2))

    def train():
        with parity.torch.watch(tmp_path / "a", layer, other):
            layer(torch.ones(1, 3)).sum().backward()
            trains.step()

    with pytest.raises(UsageError, match="no step was recorded: the optimizer made none"):
        train()


def step_once(folder, model, optimizer, loss=None):
    """Watch one step of a model whose loss a function computes; None: of no loss."""
    with parity.torch.watch(folder, model, optimizer):
        if loss is not None:
            loss().backward()
        optimizer.step()


def test_what_cannot_be_seen_is_said(tmp_path):
    import torch

    model = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"step 0: self_attn.out_proj: not called, so their"):
        step_once(tmp_path / "a", model, optimizer, lambda: model(torch.ones(2, 1, 4)).sum())
    assert "weight/self_attn.out_proj.weight" in Trace(tmp_path / "a").read(0)
    with pytest.raises(UsageError, match="no module of the model was called with gradients"):
        step_once(tmp_path / "a", torch.nn.Linear(4, 4), optimizer)
    assert Trace(tmp_path / "a").cut()

    def transformed():
        weights = {n: each.detach() for n, each in model.named_parameters()}
        called = torch.func.functional_call

        def loss(weights):
            return called(model, weights, torch.ones(2, 1, 4)).sum()

        torch.func.grad(loss)(weights)

    with pytest.raises(UsageError, match=r"torch.func hides what the model computes; allowed"):
        step_once(tmp_path / "a", model, optimizer, transformed)
    scripted = torch.jit.script(torch.nn.Linear(2, 2))
    for wrong, said in (
        (scripted, "is a ScriptModule, which has no hooks"),
        (3, "model is int"),
    ):
        with pytest.raises(UsageError, match=said):
            step_once(tmp_path / "b", wrong, optimizer)
    with pytest.raises(UsageError, match="optimizer is None"):
        step_once(tmp_path / "b", model, None)
    assert not (tmp_path / "b").exists()


def test_nothing_is_left_behind(tmp_path):
    import torch

    before = torch.autograd.backward
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail():
        train(model, optimizer, steps=2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step_once(tmp_path / "a", model, optimizer, fail)
    assert torch.autograd.backward is before
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert not optimizer._optimizer_step_post_hooks
    assert Trace(tmp_path / "a").cut() == "cut after step 1"


def test_the_page_s_lines_run_as_written_and_its_mismatch_is_the_one_shown(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    readme = (PAGE.parent.parent / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import parity.torch\n.*?)```", readme, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert len(Trace(tmp_path / "out" / "original").numbers()) == 20
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import torch\n.*?)```", text, re.DOTALL)
    port = code.replace("LayerNorm(8)", "LayerNorm(8, eps=1e-3)").replace("original", "port")
    for each in (code, port):
        exec(compile(each, "watching.md", "exec"), {})
    verdict = compare_pair([Trace(tmp_path / "out" / side) for side in ("original", "port")])
    assert verdict.mismatches[0].place.tensor == "forward/1"
    (first,) = re.findall(r"differ in (\S+), step 0", text)
    assert first == "forward/1"


def test_float8_and_complex_tensors_are_recorded_and_compared(tmp_path):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = torch.nn.Parameter(torch.linspace(0, 1, 6).to(torch.complex64))
            self.spectrum, self.small = torch.nn.Identity(), torch.nn.Identity()

        def forward(self, x):
            spectrum = self.spectrum(self.kernel * torch.fft.fft(x))
            self.small(spectrum.real.detach().to(torch.float8_e5m2))
            return spectrum.abs().sum()

    for folder, detail in (("a", "full"), ("b", {"forward/*": "statistics"})):
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())
        with parity.torch.watch(tmp_path / folder, model, optimizer, detail=detail):
            model(torch.arange(6.0)).backward()
            optimizer.step()
    traces = [Trace(tmp_path / each) for each in "ab"]
    found = traces[0].read(0)
    assert found["forward/spectrum"].shape == found["gradient/kernel"].shape == (6, 2)
    assert found["optimizer/kernel/exp_avg"].shape == (6, 2)
    small = torch.from_numpy(found["forward/spectrum"][:, 0]).to(torch.float8_e5m2)
    assert np.array_equal(found["forward/small"], small.float().numpy())
    verdict = compare_pair(traces)
    assert verdict.matches
    assert set(verdict.by_statistics) == {n for n in found if n.startswith("forward/")}


def test_statistics_cannot_be_put_together_from_ranks(tmp_path):
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    options = {"ranks": (0, 2), "detail": "statistics"}
    watch = parity.torch.watch(tmp_path / "a", model, optimizer, **options)
    with pytest.raises(UsageError, match="allowed on several ranks: full"), watch:
        pass
