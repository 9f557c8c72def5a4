"""What of one recorded training is what of another: proposed, confirmed, carried over."""

import json
import shutil
import subprocess
import sys
from collections import OrderedDict
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from aligned_networks import NETWORKS
from conftest import one_line
from safetensors.numpy import load_file, save_file

from parity import Recorder, Rename, Trace
from parity.align import proposal
from parity.align.kinds import Module, kind_of_module, units_of
from parity.align.layout import Layout
from parity.align.mapping import read
from parity.align.names import NameMap
from parity.align.proposal import propose
from parity.align.traps import traps, traps_at
from parity.base.errors import UsageError
from parity.cli.command_line import main
from parity.cli.commands import parity
from parity.compare.choice import WHOLE, chosen
from parity.compare.recorded_pair import compare_pair

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parent.parent
PORTS = ("paddle", "keras")
PAIRS = [(port, network) for port in PORTS for network in NETWORKS]


def run(capsys, *words, status=0):
    """Run a command; return the lines it printed."""
    assert main(parity, list(map(str, words))) == status
    return capsys.readouterr().out.splitlines()


def refused(capsys, *words):
    """Run a command that is refused; return the line that says why."""
    assert main(parity, list(map(str, words))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def missing(capsys, *words):
    """Compare two traces; return label -> what only that side has."""
    lines = run(capsys, "compare", *words, "--json", "-", status=1)
    return json.loads("\n".join(lines))["only"]


def start(*words):
    """Start a Python process that trains networks."""
    paths = f"{ROOT}:{ROOT / 'tests'}"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *map(str, words)],
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(*processes):
    for each in processes:
        _, said = each.communicate()
        assert each.returncode == 0, said


@pytest.fixture(scope="module")
def carried(once):
    """Return the folder of all networks, and of ports from the weights of those in PyTorch."""
    script = ROOT / "tests" / "aligned_networks.py"

    def train(folders):
        end(start(script, "torch", *folders))
        end(*(start(script, port, *folders) for port in PORTS))

    return once.fill(["carried"], train)[0]


def compared(folder, port, network):
    mapping = read(folder / f"{port}-{network}.yaml")
    traces = [Trace(folder / "torch" / network), Trace(folder / f"{port}-carried" / network)]
    parts, only = chosen(mapping.mapped(traces), WHOLE)
    return compare_pair(parts), only


# What of three steps differs by more than 1e-11, the weights being the same: two biases of
# PyTorch move where Keras has one, and Keras squares the rows of an embedding's gradient
# before it sums those of the same word; Paddle keeps epsilons in float32; the variance that
# PyTorch stores has n - 1.
DIFFERENT = {
    ("keras", "lstm"): "optimizer/embed.weight/exp_avg_sq",
    ("keras", "gru"): "optimizer/embed.weight/exp_avg_sq",
    ("keras", "conv"): "weight/1.running_var",
    ("paddle", "conv"): "forward/1",
}


@pytest.mark.parametrize(("port", "network"), PAIRS)
def test_a_port_with_the_weights_carried_over_computes_the_same(carried, port, network):
    verdict, only = compared(carried, port, network)
    assert only == {}
    first = verdict.mismatches[0].place.tensor if verdict.mismatches else None
    assert first == DIFFERENT.get((port, network))
    (worst,) = verdict.pairs.values()
    of_epsilon = (port, network) == ("paddle", "conv")
    assert worst["forward"].relative <= (1e-10 if of_epsilon else 1e-11)
    names = [name.partition("/")[0] for name in verdict.tensors]
    assert names.count("weight") == names.count("initial") > 5
    assert names.count("forward") >= names.count("activation_gradient") >= 3
    assert ("optimizer" in names) == (network in ("lstm", "gru"))


# What is set there otherwise, as the first lines say it.
SETTINGS = {
    ("keras", "lstm"): "epsilon: 1e-08 in pytorch, 1e-07 in keras; fix: epsilon=1e-08",
    ("keras", "gru"): "epsilon: 1e-08 in pytorch, 1e-07 in keras; fix: epsilon=1e-08",
    ("keras", "conv"): "divisor of the moving variance: n - 1 in pytorch, n in keras",
    ("paddle", "conv"): "momentum, which Paddle rounds to float32: 0.9 in pytorch, 0.8999",
}


@pytest.mark.parametrize(("port", "network"), SETTINGS)
def test_a_mismatch_names_the_settings_that_differ_there(carried, capsys, port, network):
    def first_lines(*traces):
        lines = run(capsys, "compare", *traces, "--map", file, status=1)
        return " ".join(" ".join(takewhile(bool, lines)).split())

    ours, file = carried / "torch" / network, carried / f"{port}-{network}.yaml"
    theirs = carried / f"{port}-carried" / network
    told = first_lines(ours, theirs)
    assert f"settings: {SETTINGS[port, network]}" in told
    count = run(capsys, "doctor", ours, theirs, status=1)[-1]
    more = told.count("settings: ") < int(count.split()[0])
    all_of = f"next: parity doctor lists {count} in settings and conventions"
    assert told.endswith(all_of) == more
    told = first_lines(ours, carried / port / network)
    assert "settings: the initial weights differ; fix: parity weights carries them over" in told


@pytest.mark.parametrize(
    ("tensor", "is_told"),
    [
        ("weight/1.running_var", True),
        ("weight/1.running_mean", False),
        ("weight/1.weight", False),
        ("forward/1", False),
        ("activation_gradient/1", False),
    ],
)
def test_the_divisor_of_a_variance_is_told_of_that_alone(carried, tensor, is_told):
    pair = Trace(carried / "torch" / "conv"), Trace(carried / "keras-carried" / "conv")
    here, others = traps_at(pair, tensor)
    assert [each.what for each in here] == ["divisor of the moving variance"] * is_told
    assert others == (not is_told)


@pytest.mark.parametrize(("port", "network"), PAIRS)
def test_there_and_back_is_bit_equal(carried, capsys, tmp_path, port, network):
    file = carried / f"{port}-{network}.yaml"
    trace = carried / f"{port}-carried" / network
    run(capsys, "weights", trace, "--map", file, "-o", tmp_path / "back")
    first = Trace(carried / "torch" / network).read(0)
    back = load_file(tmp_path / "back")
    assert len(back) >= 7
    for name, array in back.items():
        if (port, network) == ("keras", "lstm") and "bias_" in name:  # one bias there
            term = sum(first[f"initial/rnn.bias_{each}_l0"] for each in ("ih", "hh"))
            expected = term if "_ih" in name else np.zeros_like(term)
        else:
            expected = first[f"initial/{name}"]
        np.testing.assert_array_equal(array, expected, strict=True)


def test_a_wrong_layout_is_found(carried, capsys, tmp_path):
    """A square matrix fits whichever way round; so only the values tell."""
    text = (carried / "paddle-encoder.yaml").read_text()
    right = "b: {of: encoder.layers.1.self_attn.out_proj.weight, layout: [transpose]}"
    assert text.count(right) == 1
    file, port = tmp_path / "paddle-encoder.yaml", tmp_path / "paddle-carried"
    file.write_text(text.replace(right, right.replace("[transpose]", "[]")))
    port.mkdir()
    (tmp_path / "torch").symlink_to(carried / "torch")
    weights = port / "encoder.safetensors"
    run(capsys, "weights", tmp_path / "torch" / "encoder", "--map", file, "-o", weights)
    code = "import pathlib, sys, aligned_networks as all\n"
    end(
        start(
            "-c", f"{code}all.with_paddle(all.Run('encoder'), pathlib.Path(sys.argv[1]))", port
        )
    )
    verdict, _ = compared(tmp_path, "paddle", "encoder")
    assert verdict.mismatches[0].place.tensor == "forward/encoder.layers.1.self_attn/0"


def watched(folder, *modules, change=lambda model: None, shape=(2, 4)):
    """Train a PyTorch model of some modules for a step, and record it."""
    import torch

    import parity.torch

    torch.manual_seed(ord(folder.name))
    model = torch.nn.Sequential(*(make(torch.nn) for make in modules)).double()
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with parity.torch.watch(folder, model, optimizer, side=folder.name):
        (model(torch.ones(shape).double()) ** 2).mean().backward()
        optimizer.step()
    return folder


def square(nn):
    return nn.Linear(4, 4)


def test_a_unit_that_could_be_another_is_not_used_until_confirmed(tmp_path, capsys):
    a = watched(tmp_path / "a", square, lambda nn: nn.ReLU(), square)
    b = watched(tmp_path / "b", square)
    file = tmp_path / "map.yaml"
    said = run(capsys, "align", a, b, "-o", file)
    text = " ".join(said)
    assert text.startswith("not sure: 0 and 0: units 1 and 1 in the order of execution; others")
    assert text.endswith(f"map: {file}: 2 rows sure, 1 not")
    assert text.count("no partner: ") == 2
    assert max(map(len, said[:-1])) <= 80
    (row,) = (each for each in read(file).rows if each.kind == "linear")
    assert not row.use
    only = missing(capsys, a, b, "--map", file)
    assert "weight/0.weight" in only["a"]
    assert "weight/0.weight (b)" in only["b"]
    (left_out, *_) = run(capsys, "weights", a, "--map", file, "-o", tmp_path / "weights")
    assert left_out.startswith("left out: 0 and 0; say `use: true` in")
    file.write_text(file.read_text().replace("use: false", "use: true"))
    assert read(file).parameters().keys() == row.parameters.keys()


def test_no_command_replaces_a_part_of_a_trace(tmp_path, capsys):
    a = watched(tmp_path / "a", square)
    run(capsys, "align", a, a, "-o", tmp_path / "map.yaml")
    part = a / "step-000000.safetensors"
    of_weights = ["weights", a, "--map", tmp_path / "map.yaml"]
    written = [[*words, "-o"] for words in (["align", a, a], of_weights, ["bounds", a, "true"])]
    reports = ("compare", "--json"), ("compare", "--html"), ("report", "--html")
    for words in (*written, *([command, a, a, option] for command, option in reports)):
        assert main(parity, list(map(str, [*words, part]))) == 2
        assert capsys.readouterr().err.endswith("is part of a trace; allowed: another name\n")


def branched(folder, *order):
    """Record two branches of like normalisations, which run in an order."""
    import torch
    from torch import nn

    import parity.torch

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(2))
            self.convs = nn.ModuleList(nn.Conv2d(2, 3, 2 * i + 1, padding=i) for i in range(2))

        def forward(self, x):
            found = {i: self.convs[i](x) for i in order}
            return sum(self.norms[i](found[i]) for i in order)

    torch.manual_seed(len(folder.name))
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with parity.torch.watch(folder, model, optimizer):
        model(torch.rand(2, 2, 4, 4)).mean().backward()
        optimizer.step()
    return folder


def test_branches_that_run_in_another_order(tmp_path, capsys):
    a, b = branched(tmp_path / "a", 0, 1), branched(tmp_path / "other", 1, 0)
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    rows = [row for row in read(tmp_path / "map.yaml").rows if row.parameters]
    assert len(rows) == 4
    assert all(row.use and row.units[0] == row.units[1] for row in rows)


def convolved(folder, order, chained):
    """Record two convolutions of one shape: branches of what a third returns, or a chain."""
    import torch
    from torch import nn

    import parity.torch

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(2, 3, 3)
            self.act = nn.ReLU()
            conv, norm = (lambda: nn.Conv2d(3, 3, 3, padding=1)), (lambda: nn.BatchNorm2d(3))
            for name in sorted(order):
                setattr(self, name, nn.Sequential(OrderedDict({name: conv(), "norm": norm()})))

        def forward(self, x):
            x = self.act(self.first(x))
            a, b = (getattr(self, each) for each in order)
            return b(self.act(a(x))) if chained else a(x) * b(x)

    torch.manual_seed(len(folder.name))
    model = Model()
    with parity.torch.watch(folder, model, optimizer := torch.optim.SGD(model.parameters())):
        model(torch.rand(2, 2, 8, 6)).mean().backward()
        optimizer.step()
    return folder


@pytest.mark.parametrize("chained", [True, False])
def test_convolutions_that_may_run_in_any_order_are_not_sure(tmp_path, capsys, chained):
    a = convolved(tmp_path / "a", "ab", chained)
    b = convolved(tmp_path / "other", "xy", chained)
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    rows = [
        row for row in read(tmp_path / "map.yaml").rows if row.kind in ("conv", "batchnorm")
    ]
    assert [row.use for row in rows] == [True, *[chained] * 4]


def attention(nn, name):
    """Return attention as one module, or as linear layers of some names, in some order."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 1)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
            self.dense = nn.Linear(4, 4)

        def forward(self, x):
            scores = self.query(x) @ self.key(x).T / 2
            return self.dense(scores.softmax(-1) @ self.value(x))

    class KeyFirst(Parts):
        def forward(self, x):
            key, value = self.key(x), self.value(x)
            return self.dense((self.query(x) @ key.T / 2).softmax(-1) @ value)

    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            key, value, query = (layer(x) for layer in self.layers[:3])
            return self.layers[3]((query @ key.T / 2).softmax(-1) @ value)

    return {"w": Whole, "p": Parts, "k": KeyFirst, "n": Numbered}[name]()


@pytest.mark.parametrize("names", ["pw", "wp"])
def test_attention_as_one_module_and_as_linear_layers(tmp_path, capsys, names):
    a, b = (watched(tmp_path / n, lambda nn, n=n: attention(nn, n)) for n in names)
    said = run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    assert said == [f"map: {tmp_path / 'map.yaml'}: 4 rows sure, 0 not"]
    run(capsys, "weights", a, "--map", tmp_path / "map.yaml", "-o", tmp_path / "weights")
    given = {name: each for name, each in Trace(a).read(0).items() if "initial" in name}
    carried = load_file(tmp_path / "weights")
    joined, parts = (given, carried) if names[0] == "w" else (carried, given)
    whole = next(each for name, each in joined.items() if name.endswith("in_proj_weight"))
    key = next(each for name, each in parts.items() if name.endswith("key.weight"))
    np.testing.assert_array_equal(whole[4:8], key)


@pytest.mark.parametrize(("port", "sure"), [("k", 4), ("n", 1)])
def test_layers_that_read_the_same_are_paired_by_their_letters_or_not_sure(
    tmp_path, capsys, port, sure
):
    a, b = (watched(tmp_path / n, lambda nn, n=n: attention(nn, n)) for n in ("p", port))
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    rows = [row for row in read(tmp_path / "map.yaml").rows if row.kind == "linear"]
    assert [row.use for row in rows] == [sure == 4] * 3 + [True]
    assert sure == 1 or all(row.units[0] == row.units[1] for row in rows)


def owner(nn, *sizes):
    import torch

    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            for i, size in enumerate(sizes):
                self.register_parameter(f"own{i}", nn.Parameter(torch.rand(size)))

        def forward(self, x):
            return x * sum(each.sum() for each in self.parameters())

    return Owner()


@pytest.mark.parametrize(
    ("first", "second", "sure"),
    [
        ([(5, 1), (3,)], [(1, 3), (1, 5)], [True, True]),  # each fits one other
        ([(5,), (5,)], [(1, 5), (5,)], [False, False]),
        ([(5,), (3,)], [(3,)], [False]),
        ([(3, 3)], [(1, 3, 3)], [False]),  # it may be transposed
    ],
)
def test_parameters_of_the_user_s_own_modules(tmp_path, capsys, first, second, sure):
    a = watched(tmp_path / "a", square, lambda nn: owner(nn, *first))
    b = watched(tmp_path / "b", lambda nn: nn.Sequential(owner(nn, *second)), square)
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    rows = [row for row in read(tmp_path / "map.yaml").rows if row.kind == "parameter"]
    assert [row.use for row in rows] == sure


@pytest.mark.parametrize(("size", "sure"), [((5, 3), True), ((5, 5), False)])
def test_a_module_of_one_parameter_that_fits_one_way_is_sure(tmp_path, capsys, size, sure):
    a, b = (watched(tmp_path / n, square, lambda nn: owner(nn, size)) for n in "ab")
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    (row,) = (row for row in read(tmp_path / "map.yaml").rows if row.kind == "module")
    assert row.use == sure


def test_values_make_sure_what_the_order_leaves_open(tmp_path, capsys):
    kept = {}

    def keep(model):
        kept.update({n: each.clone() for n, each in model[0].state_dict().items()})

    a = watched(tmp_path / "a", square, lambda nn: nn.ReLU(), square, change=keep)
    b = watched(tmp_path / "b", square, change=lambda model: model[0].load_state_dict(kept))
    run(capsys, "align", a, b, "-o", tmp_path / "map.yaml")
    (row,) = (each for each in read(tmp_path / "map.yaml").rows if each.kind == "linear")
    assert (row.use, row.units) == (True, ("0", "0"))


def test_a_layer_with_parameters_of_its_own_is_not_taken_for_one_of_the_framework():
    parts = {"factor": "fc/factor", "bias": "fc/bias"}
    kinds = [("keras", kind) for kind in ("linear", "conv", "lstm", "attention")]
    for framework, kind in (*kinds, ("jax", "gru"), ("torch", "lstm")):
        (unit,) = units_of(Module("fc", kind, framework, parts, {}, {}))
        assert not unit.known
        assert unit.parameters["factor"].names == ("fc/factor",)


@pytest.mark.parametrize(
    ("inputs", "steps", "known"), [(192, 4, True), (4, 1, True), (48, 1, False)]
)
def test_a_linear_layer_that_reads_images(inputs, steps, known):
    """Flattened as they are; reduced to their channels; pooled and flattened by functions."""
    parts, shapes = {"kernel": "k", "bias": "b"}, {"k": (inputs, 3), "b": (3,)}
    module = Module("fc", "linear", "keras", parts, {}, shapes, given=(2, 8, 6, 4))
    (unit,) = units_of(module)
    assert (len(unit.parameters["weight"].layout), unit.known) == (steps, known)


def layout_of(kind, framework, given, settings=None):
    """Return the parameters of a module in the shared layout."""
    parts = {name: f"fc.{name}" for name in given}
    shapes = {f"fc.{name}": each.shape for name, each in given.items()}
    (unit,) = units_of(Module("fc", kind, framework, parts, settings or {}, shapes))
    assert unit.known
    return {
        role: Layout.read(part.layout).apply([given[n.removeprefix("fc.")] for n in part.names])
        for role, part in unit.parameters.items()
    }


def test_a_kernel_of_several_filters_for_each_channel():
    kernel = np.arange(36).reshape(3, 3, 2, 2)
    found = layout_of("conv", "keras", {"kernel": kernel}, {"depth_multiplier": 2})["weight"]
    assert found.shape == (4, 1, 3, 3)
    for channel, multiplier in np.ndindex(2, 2):
        filters = found[2 * channel + multiplier, 0]
        np.testing.assert_array_equal(filters, kernel[:, :, channel, multiplier])


LESS_USUAL = """
import sys
import parity.{0} as watched
import numpy as np
{1}
folder, *weights = sys.argv[1:]
if weights:
    watched.load(model, weights[0])
x = np.random.default_rng(1).normal(size=(3, 2, 4, 6)).astype(np.float32)
with watched.watch(folder, model, *optimizer):
    train(x)
"""
IN = {
    "torch": """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act = nn.ConvTranspose2d(2, 3, 2, stride=2), nn.PReLU(3)
        self.norm = nn.InstanceNorm2d(3, affine=True) if folder.endswith("paddle") else None
        self.rms, self.hard = nn.RMSNorm(3, eps=1e-6), nn.Hardswish()
        self.both, self.bag = nn.Bilinear(3, 3, 4), nn.EmbeddingBag(5, 4)

    def forward(self, x):
        x = self.act(self.up(x))
        x = x if self.norm is None else self.norm(x) + 0.5
        x = x.mean((2, 3))
        x = self.hard(self.rms(x) if self.norm is None else x)
        words = torch.zeros(3, 2, dtype=torch.long)
        return self.bag(words) + (self.both(x, x) if self.norm is not None else x[:, :1])

folder = sys.argv[1]
torch.manual_seed(1)
model = Net()
optimizer = [torch.optim.SGD(model.parameters(), 0.1)]
def train(x):
    (model(torch.tensor(x)) ** 2).mean().backward()
    optimizer[0].step()
""",
    "paddle": """
import paddle
from paddle import nn

class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.up, self.act = nn.Conv2DTranspose(2, 3, 2, stride=2), nn.PReLU(3)
        self.norm, self.hard = nn.InstanceNorm2D(3), nn.Hardswish()
        self.both = nn.Bilinear(3, 3, 4)

    def forward(self, x):
        x = self.norm(self.act(self.up(x))) + 0.5
        x = self.hard(x.mean((2, 3)))
        return self.words(paddle.zeros([3, 2], "int64")).mean(1) + self.both(x, x)

model = Net()
optimizer = [paddle.optimizer.SGD(0.1, parameters=model.parameters())]
def train(x):
    (model(paddle.to_tensor(x)) ** 2).mean().backward()
    optimizer[0].step()
""",
    "keras": """
import keras
from keras import layers, ops

x = keras.Input((4, 6, 2))
hidden = layers.PReLU(shared_axes=[1, 2])(layers.Conv2DTranspose(3, 2, 2)(x))
hidden = layers.RMSNormalization(epsilon=1e-6)(ops.mean(hidden, (1, 2)))
hidden = layers.Activation("hard_swish")(hidden)
words = layers.Embedding(5, 4)(ops.cast(ops.zeros_like(hidden[:, :2]), "int64"))
model = keras.Model(x, ops.mean(words, 1) + hidden[:, :1])
model.compile(keras.optimizers.SGD(0.1), loss="mse")
optimizer = []
def train(x):
    x = np.moveaxis(x, 1, 3)
    model.fit(x, np.zeros((3, 4)), batch_size=3, shuffle=False, verbose=0)
""",
}


@pytest.mark.parametrize(
    ("port", "right"),
    [
        ("paddle", {"up": 2, "act": 1, "norm": 2, "both": 2, "bag": 1}),
        ("keras", {"up": 2, "act": 1, "rms": 1, "bag": 1}),
    ],
)
def test_layers_that_are_less_usual(tmp_path, capsys, port, right):
    def record(side, *words):
        script = tmp_path / f"in_{side}.py"
        script.write_text(LESS_USUAL.format(side, IN[side]))
        process = start(script, *words)
        assert process.wait() == 0, process.stderr.read()

    a, b, file = tmp_path / f"of-{port}", tmp_path / "b", tmp_path / "map.yaml"
    record("torch", a)
    record(port, b)
    run(capsys, "align", a, b, "-o", file)
    run(capsys, "weights", a, "--map", file, "-o", tmp_path / "weights")
    record(port, b, tmp_path / "weights")
    run(capsys, "align", a, b, "-o", file)
    rows = {row.units[0]: row for row in read(file).rows}
    assert {name: len(rows[name].parameters) for name in right} == right
    for name in right:
        assert rows[name].use
        assert "initial weights equal" in rows[name].why
        assert name == "bag" or "outputs agree" in rows[name].why
    if port == "paddle":
        assert "outputs agree" in rows["hard"].why


def test_an_activation_inside_a_layer_is_a_unit_of_its_own():
    shapes = {"weight": (2,), "forward/norm": (3, 2)}
    parts = {"weight": "weight"}
    norm, relu = units_of(Module("norm", "batchnorm", "paddle", parts, {"act": "relu"}, shapes))
    assert (list(norm.parameters), norm.outputs, relu.kind) == (["weight"], {}, "relu")
    assert relu.outputs["output"].names == ("norm",)


def test_an_activation_of_keras_is_the_function_that_it_applies():
    def module(kind, **settings):
        return {"name": "act", "kind": kind, "settings": settings}

    assert kind_of_module(module("Activation", activation="leaky_relu")) == "leakyrelu"
    assert kind_of_module(module("GELU", approximate="none")) == "gelu"
    assert (
        kind_of_module(module("Activation")) == "activation"
    )  # of a function of the user's own


@pytest.mark.parametrize("dots", ["if_.kernel", "if.kernel"])
def test_a_cell_of_flax_whose_gates_are_layers(dots):
    names = ["ii.kernel", dots, "ig.kernel", "io.kernel"]
    given = {n: np.full((2, 3), i) for i, n in enumerate(names)}
    given |= {f"h{gate}.kernel": np.full((3, 3), i) for i, gate in enumerate("ifgo")}
    given |= {f"h{gate}.bias": np.full(3, i) for i, gate in enumerate("ifgo")}
    found = layout_of("lstm", "jax", given)
    gates = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found["bias"].tolist() == gates
    for role, inputs in (("weight_ih", 2), ("weight_hh", 3)):
        assert found[role].T.tolist() == [gates] * inputs


def test_a_sum_is_of_weights_and_each_of_its_gradients():
    names = NameMap({("ih", "hh"): Rename("bias", "sum")})
    one, two = np.ones(3), np.full(3, 2.0)
    given = {"weight/ih": one, "weight/hh": two, "gradient/ih": one, "gradient/hh": one}
    found = {name: each.value(given) for name, each in names.sources(given).items()}
    assert {name: each[0] for name, each in found.items()} == {
        "weight/bias": 3,
        "gradient/bias": 1,
    }
    for terms, second in ((True, 0), (False, 1)):
        back = Layout.read(["sum"]).invert(one, 2, terms=terms)
        assert [each[0] for each in back] == [1, second]
    # one that is frozen has no gradient; a weight cannot be missing
    assert list(names.sources(["gradient/hh"])) == ["gradient/bias"]
    assert list(names.sources(["weight/hh"])) == ["weight/hh"]


BAD_LAYOUTS = [
    "transpose",
    ["turn"],
    [{"axes": [0, 2]}],
    [{"axes": "10"}],
    [{"reshape": [[2, 3], [7]]}],
    [{"blocks": [0, [1, 1]]}],
    [{"concatenate": [0]}],
    [{"concatenate": [0, [2, "3"]]}],
    [{"sum": 1}],
    [{"transpose": None, "sum": None}],
    [3],
]


@pytest.mark.parametrize("steps", BAD_LAYOUTS, ids=str)
def test_a_layout_that_makes_no_sense_is_refused(steps):
    with pytest.raises(UsageError, match=r"layout.*; allowed: "):
        Layout.read(steps)


UNIT = {"units": ["fc", "dense"], "use": True, "parameters": {"w": {"a": "w", "b": "k"}}}
BAD_MAPS = {
    "format": ({"format": 2}, "format is 2; allowed: 1"),
    "unknown": ({"rows": []}, "the map has 'rows'; allowed: a, b, "),
    "units": ({"units": [UNIT | {"units": ["fc"]}]}, "units is ['fc']; allowed: one of each"),
    "use": ({"units": [UNIT | {"use": "yes"}]}, "fc and dense: use is 'yes'; allowed: true or"),
    "one side": (
        {"units": [UNIT | {"parameters": {"w": {"a": "w"}}}]},
        "fc and dense: w: b is None; allowed: a name",
    ),
    "layout": (
        {
            "units": [
                UNIT | {"parameters": {"w": {"a": "w", "b": {"of": "k", "layout": ["x"]}}}}
            ]
        },
        "a step of a layout is 'x'; allowed: transpose",
    ),
    "twice": (
        {"units": [UNIT, UNIT | {"parameters": {"v": {"a": "w", "b": "l"}}}]},
        "two rows",
    ),
    "alias": (b"a: &x [1]\nb: *x\n", "is no YAML: an alias; allowed: plain values"),
    "key": (b"a: x\nb:\n  c: 1\n  c: 1\n", "is no YAML: 'c' twice, in line 4; allowed: each"),
    "tag": (b"a: !!python/object:os.system x\n", "is no YAML: could not determine a constr"),
    "nested": (b"[" * 5000, "is nested too deeply"),
    "large": (b"#" * 2**23 + b"\n", "is larger than 8,388,608 bytes; allowed: up to that size"),
    "bytes": (b"\xff\xfe\x00", "is no YAML: "),
    "list": (b"- 1\n", "format is [1]; allowed: 1"),
}


@pytest.mark.parametrize("case", BAD_MAPS)
def test_a_map_that_makes_no_sense_is_refused_in_one_line(tmp_path, case):
    content, message = BAD_MAPS[case]
    if isinstance(content, dict):
        values = {"format": 1, "a": "one", "b": "other", "units": [UNIT]} | content
        content = json.dumps(values).encode()
    (tmp_path / "map.yaml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "map.yaml")
    assert str(caught.value).startswith(str(tmp_path / "map.yaml"))
    assert message in one_line(caught)


OTHER_NAMES = {
    "a parameter": (
        "a: embed.weight",
        "a: embed.wieght",
        "'embed.wieght' of pytorch",
        "embed.w",
    ),
    "an output": ("b: out\n", "b: ou\n", "'ou' of paddle", "out"),
    "a slot": ("b: moment1", "b: moment3", "'moment3' of paddle", "embed.weight/moment1"),
}


@pytest.mark.parametrize("case", OTHER_NAMES)
def test_a_map_of_names_that_a_trace_has_not_is_refused(carried, capsys, tmp_path, case):
    old, new, named, left = OTHER_NAMES[case]
    text = (carried / "paddle-gru.yaml").read_text()
    assert old in text
    (tmp_path / "map.yaml").write_text(text.replace(old, new, 1))
    traces = carried / "torch" / "gru", carried / "paddle-carried" / "gru"
    line = refused(capsys, "compare", *traces, "--map", tmp_path / "map.yaml")
    assert f"the map names {named}, which has no such tensor; in no row is '{left}" in line


def test_a_map_the_wrong_way_round_is_refused(carried, capsys):
    traces = carried / "paddle-carried" / "gru", carried / "torch" / "gru"
    line = refused(capsys, "compare", *traces, "--map", carried / "paddle-gru.yaml")
    assert " of paddle, which has no such tensor; in no row is " in line


def test_a_trace_may_lack_what_was_not_recorded(carried, capsys, tmp_path):
    """Here a layer's output, which the map names nevertheless."""
    folders = [carried / side / "gru" for side in ("torch", "paddle-carried")]
    parts = [tmp_path / "a", tmp_path / "b"]
    for folder, part in zip(folders, parts, strict=True):
        trace = Trace(folder)
        given = {"framework": trace.side.framework, "dtype": trace.header["dtype"]}
        with Recorder(part, **given, same_tensors=False) as recorder:
            for step, tensors in trace.steps():
                kept = {n: x for n, x in tensors.items() if n.partition("/")[2] != "embed"}
                assert len(kept) == len(tensors) - 2
                recorder.step(step, kept)
    run(capsys, "compare", *parts, "--map", carried / "paddle-gru.yaml")


def test_a_trace_that_was_not_watched_cannot_be_aligned(tmp_path, capsys):
    from parity import Recorder

    with Recorder(tmp_path / "a", framework="mine", dtype="float64") as recorder:
        recorder.step(0, {"weight/a": np.zeros(2)})
    assert main(parity, ["align", str(tmp_path / "a"), str(tmp_path / "a")]) == 2
    assert "does not say what its modules are; allowed: a trace" in capsys.readouterr().err


BAD_WEIGHTS = {
    "lacks": (lambda w: w.pop("0.bias"), "lacks '0.bias', which the model has"),
    "has": (lambda w: w.update(more=np.zeros(1)), "has 'more', which the model has not"),
    "shape": (
        lambda w: w.update({"0.bias": np.zeros(5)}),
        "'0.bias' has shape [5]; allowed: [4]",
    ),
    "rounds": (
        lambda w: w.update({"0.bias": np.full(4, 0.1)}),
        "'0.bias' is float64, which the model rounds; allowed: a model of that type",
    ),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_of_another_model_are_refused(tmp_path, case):
    import torch

    import parity.torch

    change, message = BAD_WEIGHTS[case]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    weights = {name: each.numpy() for name, each in model.state_dict().items()}
    change(weights)
    save_file(weights, tmp_path / "w")
    with pytest.raises(UsageError) as caught:
        parity.torch.load(model, tmp_path / "w")
    assert message in str(caught.value)


def with_header(trace, folder, change, facts=None):
    """Copy a trace with other settings of its modules and optimiser in its header."""
    shutil.copytree(trace, folder)
    header = json.loads((folder / "trace.json").read_text())
    for each in (*header["facts"]["modules"], header["facts"]["optimizer"]):
        each["settings"] |= change.get(each["kind"], {})
    header["facts"] |= facts or {}
    header |= change.get("header", {})
    (folder / "trace.json").write_text(json.dumps(header))
    return folder


# port, network, changed settings -> what is found of the second side, and what mends it
FOUND = {
    "nothing": ("keras", "encoder", {}, []),
    "two biases, epsilons": (
        *("keras", "lstm", {}),
        [
            ("biases, each of which is trained", ("2", "1"), "where there are two, freeze"),
            ("epsilon", ("1e-08", "1e-07"), "epsilon=1e-08"),
            ("1 - beta2, held in float32", ("0.001", "0.00099998"), "betas 0.875"),
            ("an embedding's squared", ("of their sum", "of each row alone"), "no word twice"),
            ("epsilon is added", ("after it", "before the bias correction"), "an epsilon of"),
        ],
    ),
    "float32": (
        *("paddle", "encoder", {}),
        [("epsilon, which Paddle rounds", ("1e-05", "9.99999974"), "a number that float32")],
    ),
    "a complement in float32": (
        *("paddle", "gru", {"header": {"dtype": "float32"}}),
        [
            (
                *("1 - beta2, held in float32", ("0.001", "0.00099998")),
                "betas 0.875, 0.9990234375, or optimizer/*/exp_avg_sq=0,2e-05",
            )
        ],
    ),
    "an embedding, a recurrent layer, an optimiser": (
        *("paddle", "gru"),
        {
            "Embedding": {"padding_idx": 0},
            "GRU": {"dropout": 0.1, "reset_after": False},
            "Adam": {"beta2": 0.99, "weight_decay": 0.01},
        },
        [
            ("padding_idx", ("None", "0"), "padding_idx=None"),
            ("reset_after", ("True", "False"), "reset_after=True"),
            ("dropout", ("0", "0.1"), "0 on both"),
            ("beta2", ("0.999", "0.99"), "beta2=0.999"),
            ("decay", ("0", "0.01"), "weight_decay=0"),
        ],
    ),
    "attention, a layer normalisation": (
        *("keras", "encoder"),
        {"MultiHeadAttention": {"key_dim": 8}, "LayerNormalization": {"epsilon": 1e-3}},
        [
            ("epsilon", ("1e-05", "0.001"), "epsilon=1e-05"),
            ("scale of attention", ("0.353553390", "0.35355338"), "a key_dim that is a power"),
        ],
    ),
    "a convolution, a batch normalisation": (
        *("keras", "conv"),
        {"BatchNormalization": {"momentum": 0.99}, "Conv2D": {"strides": [2, 2]}},
        [
            ("stride", ("[1, 1]", "[2, 2]"), "strides=[1, 1]"),
            ("padding", ("[1, 1]", "same"), "a layer of zero padding"),
            ("momentum", ("0.9", "0.99"), "momentum=0.9"),
            ("divisor of the moving variance", ("n - 1", "n"), "no setting"),
        ],
    ),
    "uneven zeros": (
        *("keras", "conv", {"Conv2D": {"padding": [[0, 2], [0, 2]]}}),
        [
            ("padding", ("[1, 1]", "[[0, 2], [0, 2]]"), "a layer of zero padding before it"),
            ("divisor of the moving variance", ("n - 1", "n"), "no setting"),
        ],
    ),
    "a dilation, and the padding that suits it": (
        *("keras", "conv", {"Conv2D": {"dilation_rate": [2, 2]}}),
        [
            ("dilation", ("[1, 1]", "[2, 2]"), "dilation_rate=[1, 1]"),
            ("divisor of the moving variance", ("n - 1", "n"), "no setting"),
        ],
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_doctor_finds_what_two_trainings_differ_in(carried, capsys, tmp_path, case):
    port, network, change, expected = FOUND[case]
    ours = with_header(carried / f"{port}-carried" / network, tmp_path / "port", change)
    pair = Trace(carried / "torch" / network), Trace(ours)
    found = traps(pair)
    for each, (what, values, fix) in zip(found, expected, strict=True):
        assert each.what.startswith(what)
        assert each.fix.startswith(fix)
        assert all(a.startswith(b) for a, b in zip(each.values, values, strict=True))
    lines = run(capsys, "doctor", *(each.folder for each in pair), status=int(bool(expected)))
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + 4 * len(expected)


@pytest.mark.parametrize(
    ("facts", "values", "fix"),
    [
        ({}, ("nothing", "all products"), "set NVIDIA_TF32_OVERRIDE=0"),
        (
            {"tf32": "convolutions and recurrent layers"},
            ("convolutions and recurrent layers", "all products"),
            "set NVIDIA_TF32_OVERRIDE=0",
        ),
    ],
)
def test_doctor_finds_what_a_gpu_rounds(carried, tmp_path, facts, values, fix):
    """The rounding was seen on a GPU; here the headers are those that it left."""
    single = {"header": {"dtype": "float32"}}
    ours = with_header(carried / "torch" / "encoder", tmp_path / "a", single, facts)
    port = carried / "keras-carried" / "encoder"
    port = with_header(port, tmp_path / "b", single, {"tf32": "all products"})
    found = traps([Trace(ours), Trace(port)])[0]
    assert (found.what, found.values, found.fix) == ("rounded to TF32", values, fix)
    assert "TF32" not in str(traps([Trace(port), Trace(port)]))


KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = sys.argv[2]
import keras, numpy
import parity.keras
keras.config.set_floatx("float64")
layers = [keras.layers.LayerNormalization(epsilon=1e-5), keras.layers.Dense(2)]
layers += [keras.layers.LeakyReLU(0.3)]
model = keras.Sequential([keras.Input((4,)), *layers])
model.compile(keras.optimizers.SGD(0.1), "mse")
with parity.keras.watch(sys.argv[1], model):
    model.fit(numpy.ones((3, 4)), numpy.ones((3, 2)), verbose=0)
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_doctor_names_what_keras_computes_in_float32(tmp_path, backend):
    modules = (
        lambda nn: nn.LayerNorm(4),
        lambda nn: nn.Linear(4, 2),
        lambda nn: nn.LeakyReLU(0.3),
    )
    ours = watched(tmp_path / "t", *modules, shape=(3, 4))
    end(start("-c", KERAS, tmp_path / "k", backend))
    weights, found = traps([Trace(ours), Trace(tmp_path / "k")])
    assert weights.what == "the initial weights differ"
    if backend == "tensorflow":
        assert found.what == "slope of the leaky ReLU, held in float32"
        assert found.values == ("0.3", "0.30000001192092896")
    else:
        assert found.what == "the precision that is computed in"
        assert found.values == ("float64", "float64, some of it float32")
        where = " ".join(found.where)
        assert "/layer_normalization" in where
        assert where.endswith(" optimizer")


PADDLE = """
import sys
import parity.paddle
import paddle
from paddle import nn
paddle.set_default_dtype("float64")
pools = nn.AvgPool2D(3, 1, 1), nn.AdaptiveAvgPool2D(1)
model = nn.Sequential(nn.Conv2D(1, 2, 1), nn.Hardsigmoid(), *pools)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
with parity.paddle.watch(sys.argv[1], model, optimizer):
    model(paddle.ones([2, 1, 3, 3])).sum().backward()
    optimizer.step()
"""


def test_doctor_names_the_constants_that_paddle_holds_in_float32(tmp_path):
    modules = (
        lambda nn: nn.Conv2d(1, 2, 1),
        lambda nn: nn.Hardsigmoid(),
        lambda nn: nn.AvgPool2d(3, 1, 1),
        lambda nn: nn.AdaptiveAvgPool2d(1),
    )
    ours = watched(tmp_path / "t", *modules, shape=(2, 1, 3, 3))
    end(start("-c", PADDLE, tmp_path / "p"))
    traces = [Trace(ours), Trace(tmp_path / "p")]
    _, padding, slope, average = traps(traces)
    assert (padding.what, padding.values) == (
        "padding counts in the average",
        ("True", "False"),
    )
    assert slope.values == ("0.16666666666666666", "0.16666670143604279")
    assert average.values == ("0.1111111111111111", "0.1111111119389534")  # as measured
    assert average.where == ("2", "3")
    for each, value in zip(traces, average.values, strict=True):
        below, above = (each.read(0)[f"activation_gradient/{n}"].flat[0] for n in (2, 3))
        assert below / above == pytest.approx(float(value), rel=1e-14)


def test_the_zeros_that_are_put_before_a_convolution_count(tmp_path):
    def padding(*sides):
        traces = []
        for place, modules in enumerate(sides):
            folder = tmp_path / f"{len([*tmp_path.iterdir()])}" / "ab"[place]
            traces.append(Trace(watched(folder, *modules, shape=(2, 1, 6, 6))))
        found = [each for each in traps(traces) if not each.what.startswith("the ")]
        return [(each.what, *each.values) for each in found]

    inside = (lambda nn: nn.Conv2d(1, 2, 3, 2, padding=1),)
    bare = (lambda nn: nn.Conv2d(1, 2, 3, 2),)
    layer, unknown = (
        (lambda nn: nn.ZeroPad2d(1), *bare),
        (lambda nn: nn.ConstantPad2d(1, 0.0), *bare),  # as a function, it says nothing
    )
    for one in (inside, layer, unknown):
        assert [padding(one, other) for other in (inside, layer, unknown)] == [[]] * 3
    uneven = (lambda nn: nn.ZeroPad2d((0, 2, 1, 1)), *bare)
    assert padding(inside, uneven) == [("padding", "[1, 1]", "[1, [0, 2]]")]
    assert padding(inside, bare) == [("padding", "[1, 1]", "[0, 0]")]


def of_rules(carried, folder, kind, ours, theirs, port="keras"):
    """Return what doctor says of two optimisers of a kind, that have these settings."""
    sides = []
    for name, settings in (("torch", ours), (f"{port}-carried", theirs)):
        facts = {"optimizer": {"kind": kind, "settings": settings}, "optimizers": []}
        sides.append(with_header(carried / name / "gru", folder / name, {}, facts))
    found = traps([Trace(each) for each in sides])
    return [(each.what, each.values, each.fix) for each in found if "optimizer" in each.where]


def test_a_schedule_of_pytorch_is_not_taken_for_its_first_rate(carried, tmp_path):
    import torch

    rule = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.01)
    torch.optim.lr_scheduler.LambdaLR(rule, lambda step: (step + 1) / 4)
    ours = {name: each for name, each in rule.param_groups[0].items() if name != "params"}
    values = "a schedule that begins with 0.0025", "0.01"
    found = of_rules(carried, tmp_path / "1", "SGD", ours, {"learning_rate": 0.01})
    assert found == [("rate", values, "one rate, or one schedule, on both")]
    # a rate of Paddle's may be a schedule's first; and a loop may set that of Keras
    assert of_rules(carried, tmp_path / "2", "SGD", ours, {"learning_rate": 0.0025}) == []
    assert of_rules(carried, tmp_path / "3", "SGD", ours, {}) == []


@pytest.mark.parametrize("kind", ["Adam", "RMSprop", "SGD", "AdamW"])
def test_doctor_tells_a_decay_of_the_weight_from_one_of_the_gradient(carried, tmp_path, kind):
    ours = {"momentum": 0.5, "weight_decay": 0.01}
    theirs = {**ours, "use_ema": False}
    found = of_rules(carried, tmp_path / "1", kind, ours, theirs)
    values = "added to the gradient", "of the weight itself"
    regularizer = "in Keras an L2 regularizer of half of it, not weight_decay"
    fix = "AdamW on both" if kind == "Adam" else regularizer
    assert [each for each in found if each[0] == "decay"] == (
        [("decay", values, fix)] if kind != "AdamW" else []
    )
    ours |= {"decoupled_weight_decay": True}
    found = of_rules(carried, tmp_path / "2", kind, ours, theirs)
    assert "decay" not in [each[0] for each in found]


def test_the_decay_of_paddle_s_lamb_is_told_by_its_own_name(carried, tmp_path):
    ours = {"weight_decay": 0.01}
    theirs = {"weight_decay": 0.0, "lamb_weight_decay": 0.0}
    (found,) = of_rules(carried, tmp_path / "1", "Lamb", ours, theirs, "paddle")
    assert found == ("decay", ("0.01", "0"), "lamb_weight_decay=0.01")
    theirs = {"weight_decay": 0.01, "lamb_weight_decay": 0.01}
    assert of_rules(carried, tmp_path / "2", "Lamb", ours, theirs, "paddle") == []


def test_keras_adds_the_epsilon_of_adagrad_below_the_root(carried, tmp_path):
    values = "to the root", "below the root"
    ours, theirs = {"eps": 1e-7}, {"epsilon": 1e-7}
    found = of_rules(carried, tmp_path / "1", "Adagrad", ours, theirs)
    assert ("epsilon is added", values) in [each[:2] for each in found]
    assert of_rules(carried, tmp_path / "2", "Adagrad", ours, theirs, "paddle") == []


def test_an_epsilon_below_the_root_is_of_optax_alone(carried, tmp_path):
    (found,) = of_rules(carried, tmp_path / "1", "Adam", {}, {"eps_root": 1e-8}, "paddle")
    assert found == ("eps_root", ("0", "1e-08"), "eps_root=0")
    assert of_rules(carried, tmp_path / "2", "Adam", {}, {"eps_root": 0.0}, "paddle") == []


def test_of_sgd_without_momentum_either_decay_is_the_same(carried, tmp_path):
    ours = {"momentum": 0, "weight_decay": 0.01}
    assert of_rules(carried, tmp_path, "SGD", ours, {**ours, "use_ema": False}) == []


PADDLE_DECAYS = """
import sys
import parity.paddle
import paddle
paddle.set_default_dtype("float64")
model = paddle.nn.Linear(4, 2)
for folder in sys.argv[1:]:
    kind = getattr(paddle.optimizer, folder.rpartition("/")[2])
    rule = kind(0.1, parameters=model.parameters(), weight_decay=0.01)
    with parity.paddle.watch(folder, model, rule):
        model(paddle.ones([3, 4])).sum().backward()
        rule.step()
"""


def test_doctor_names_a_decay_that_paddle_holds_in_float32(tmp_path):
    """In its rules that decay by themselves; what it adds to a gradient is float64."""
    import torch

    import parity.torch

    kinds = {"Momentum": "SGD", "AdamW": "AdamW", "Adam": "Adam"}
    end(start("-c", PADDLE_DECAYS, *(tmp_path / kind for kind in kinds)))
    model = torch.nn.Linear(4, 2, dtype=torch.float64)
    for kind, ours in kinds.items():
        rule = getattr(torch.optim, ours)(model.parameters(), 0.1, weight_decay=0.01)
        with parity.torch.watch(tmp_path / "torch" / kind, model, rule):
            model(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
            rule.step()
        found = traps([Trace(tmp_path / "torch" / kind), Trace(tmp_path / kind)])
        decays = [(each.what, each.values) for each in found if "decay" in each.what]
        told = "decay, which Paddle rounds to float32"
        assert decays == [(told, ("0.01", "0.009999999776482582"))] * (kind != "Adam")


def test_doctor_judges_each_optimiser_and_group(tmp_path, capsys):
    import torch

    def train(side, *rates):
        def rules(model):
            first, last = torch.optim.SGD, torch.optim.Adam
            groups = zip(model[1:3], rates[1:], strict=True)
            parts = [{"params": each.parameters(), "lr": rate} for each, rate in groups]
            return [first(model[0].parameters(), rates[0]), last(parts)]

        nn = torch.nn
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 2))
        optimizers = rules(model)
        with parity_torch.watch(tmp_path / side, model, optimizers):
            (model(torch.ones(3, 4)) ** 2).mean().backward()
            for each in optimizers:
                each.step()
        return Trace(tmp_path / side)

    import parity.torch as parity_torch

    a, b = train("a", 0.1, 0.01, 0.02), train("b", 0.3, 0.01, 0.04)
    assert [(each.where, each.values) for each in traps([a, b])] == [
        (("optimizer of 0.weight", "optimizer of 0.bias"), ("0.1", "0.3")),
        (("optimizer of 2.weight", "optimizer of 2.bias"), ("0.02", "0.04")),
    ]
    lines = run(capsys, "doctor", a.folder, b.folder, status=1)
    assert lines[0] == "optimizer of 0.weight and 1 more: rate"
    # one optimiser on the other side, in its place
    with_header(b.folder, tmp_path / "c", {}, {"optimizers": []})
    found = {each.what: each.where for each in traps([a, Trace(tmp_path / "c")])}
    assert found["kind"] == ("optimizer of 0.weight", "optimizer of 0.bias")


def test_doctor_names_every_setting_that_differs_in_one_framework(carried, tmp_path):
    ours = Trace(carried / "keras-carried" / "lstm")
    rule = ours.header["facts"]["optimizer"]
    settings = {n: each for n, each in rule["settings"].items() if n != "learning_rate"}
    facts = {"optimizer": rule | {"settings": settings | {"clipnorm": 0.1}}}
    change = {"LSTM": {"go_backwards": True, "activation": "relu"}}
    other = with_header(ours.folder, tmp_path / "other", change, facts)
    assert [(each.what, each.values, each.fix) for each in traps([ours, Trace(other)])] == [
        ("go_backwards", ("False", "True"), "go_backwards=False"),
        ("activation", ("tanh", "relu"), "activation='tanh'"),
        ("rate", ("0.01", "a schedule"), "one rate, or one schedule, on both"),
        ("clipnorm", ("None", "0.1"), "clipnorm=None"),
    ]


def test_a_defect_of_the_pairing_is_not_called_bad_input(tmp_path, monkeypatch):
    a = Trace(watched(tmp_path / "a", square))
    monkeypatch.setattr(proposal, "joined", None)  # fails with a TypeError where it is called
    with pytest.raises(TypeError):
        propose([a, a])
