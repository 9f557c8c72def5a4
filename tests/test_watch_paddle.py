"""Paddle trainings that record themselves: what is seen, and that it changes nothing.

Each runs in a process of its own: another test's process may hold TensorFlow already.
"""

import re
from pathlib import Path

import numpy as np
from conftest import run_python
from moved_numbers import assert_moved
from test_align import run

from parity import Trace, assert_match

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "watching.md"

TRAINING = """
import os
import sys
from pathlib import Path
import parity.paddle
from parity.pair.perturbation import environment
import numpy as np
import paddle

class Model(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.rnn = paddle.nn.LSTM(4, 6)
        self.inner = paddle.nn.Linear(6, 6)
        self.norm = paddle.nn.BatchNorm1D(6)
        self.out = paddle.nn.Linear(6, 2)
        self.same = paddle.nn.Identity()

    def forward(self, x):
        hidden = self.rnn(x)[0][:, -1]
        return self.same(self.out(self.norm(paddle.nn.functional.relu_(self.inner(hidden)))))

def trained(folder, minimize):
    paddle.seed(1)
    draw, model = np.random.default_rng(2), Model()
    clip = paddle.nn.ClipGradByGlobalNorm(0.1)
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters(), grad_clip=clip)
    def train():
        for _ in range(20):
            x = paddle.to_tensor(draw.random((3, 5, 4), dtype=np.float32))
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.minimize(loss) if minimize else optimizer.step()
            optimizer.clear_grad()
            with paddle.no_grad():
                model(x)
    if folder:
        with parity.paddle.watch(folder, model, optimizer):
            train()
    else:
        train()
    return [each.numpy() for each in model.state_dict().values()]

for minimize in (False, True):
    plain = trained(None, minimize)
    watched = trained(sys.argv[1], minimize)
    assert all(np.array_equal(a, b) for a, b in zip(plain, watched, strict=True))
assert "backward" in vars(paddle.Tensor)
os.environ |= environment(Path(sys.argv[1]), Path("moved"), 1)
trained(sys.argv[1], False)
"""


STATIC = """
import hashlib
import sys
import parity.paddle
import numpy as np
import paddle
from paddle import nn

layers = lambda: [nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.BatchNorm1D(8)]
lstm = lambda: nn.LSTM(2, 3, num_layers=2, direction="bidirect")
draw = np.random.default_rng(3)
batches = [draw.random((5, 4), dtype=np.float32) for _ in range(6)]

def outputs(x, layers, lstm, last):
    for each in layers:
        x = nn.functional.relu(each(x))
    return last(paddle.reshape(lstm(paddle.reshape(x, [-1, 4, 2]))[0], [-1, 24]))

def rule(**parameters):
    clip, decay = nn.ClipGradByGlobalNorm(0.05), paddle.regularizer.L2Decay(0.01)
    # a bias before a normalisation has a gradient of rounding alone, which Adam would enlarge
    own = {"epsilon": 1e-3, "grad_clip": clip, "weight_decay": decay}
    return paddle.optimizer.Adam(0.01, **own, **parameters)

class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layers, self.lstm = nn.LayerList(layers()), lstm()
        self.last = nn.Linear(24, 1)

    def forward(self, x):
        return outputs(x, self.layers, self.lstm, self.last)

def dygraph(folder, *weights):
    model = Model()
    optimizer = rule(parameters=model.parameters())
    for file in weights:
        parity.paddle.load(model, file)
    with parity.paddle.watch(folder, model, optimizer):
        for x in map(paddle.to_tensor, batches):
            (model(x) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()

def static(folder, *weights):
    paddle.enable_static()
    paddle.seed(1)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, 4])
        y = outputs(nn.functional.dropout(x, 0.5 if folder is None else 0.0),
                    layers(), lstm(), nn.Linear(24, 1))
        test = main.clone(for_test=True)
        loss = paddle.mean(y ** 2)
        optimizer = rule()
        optimizer.minimize(loss)
    executor = paddle.static.Executor()
    executor.run(startup)
    for file in weights:
        parity.paddle.load(main, file)
    def train():
        found = []
        for x in batches:
            found += executor.run(main, feed={"x": x}, fetch_list=[loss])
            found += executor.run(test, {"x": x}, [y.name])
        return found + [np.array(paddle.static.global_scope().find_var(each.name).get_tensor())
                        for each in main.all_parameters()]
    if folder is None:  # with dropout: that fetching changes nothing
        return main, optimizer, train
    with parity.paddle.watch(folder, main, optimizer):
        train()

if sys.argv[1] == "digest":
    main, optimizer, train = static(None)
    if sys.argv[2:]:
        with parity.paddle.watch(sys.argv[2], main, optimizer, steps=2):
            found = train()
    else:
        found = train()
    print(hashlib.sha256(b"".join(each.tobytes() for each in found)).hexdigest())
else:
    globals()[sys.argv[1]](*sys.argv[2:])
"""


def called(*command, cwd):
    done = run_python(*command, cwd=cwd, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_watched_computes_the_same_and_is_seen_whole(tmp_path):
    called("-c", TRAINING, "a", cwd=tmp_path)
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == list(range(20))
    tensors, first = trace.read(5), trace.read(0)
    outputs = [name for name in tensors if name.startswith("forward/")]
    layers = ["rnn/0", "rnn/1/0", "rnn/1/1", "inner", "norm", "out", "same", "model"]
    assert [name for name in outputs if name.removeprefix("forward/") in layers] == [
        f"forward/{each}" for each in layers
    ]
    assert tensors["forward/inner"].min() < 0  # before the operation in place
    assert {"batch/0", "loss/loss", "activation_gradient/inner"} <= tensors.keys()
    gradients = {n.removeprefix("gradient/") for n in tensors if n.startswith("gradient/")}
    weights = {n.removeprefix("weight/") for n in tensors if n.startswith("weight/")}
    buffers = {"norm._mean", "norm._variance", "rnn._dropout_state"}
    assert weights - gradients == buffers
    assert {f"initial/{each}" for each in weights} <= first.keys()
    for name in gradients:
        assert f"clipped_gradient/{name}" in tensors
        for slot in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc"):
            assert any(n.startswith(f"optimizer/{name}/{slot}") for n in tensors), name
    norm = np.sqrt(sum((tensors[f"clipped_gradient/{n}"] ** 2).sum() for n in gradients))
    assert norm <= 0.1 * (1 + 1e-5)
    assert trace.header["versions"]["paddle"]
    assert_moved(tmp_path / "a", tmp_path / "moved", "out", "same")


def test_a_static_graph_is_recorded_as_the_same_layers_are_in_dygraph(tmp_path, capsys):
    a, b, there, back, again = (tmp_path / name for name in ("a", "b", "map", "back", "again"))
    called("-c", STATIC, "static", "a", cwd=tmp_path)
    called("-c", STATIC, "dygraph", "b", cwd=tmp_path)
    run(capsys, "align", a, b, "-o", there)
    run(capsys, "weights", a, "--map", there, "-o", tmp_path / "weights")
    called("-c", STATIC, "dygraph", "b", "weights", cwd=tmp_path)
    run(capsys, "align", a, b, "-o", again)
    assert run(capsys, "compare", a, b, "--map", again)[-1] == "verdict: match"
    # and the other way
    run(capsys, "align", b, a, "-o", back)
    run(capsys, "weights", b, "--map", back, "-o", tmp_path / "carried")
    first = Trace(tmp_path / "a").read(0)
    called("-c", STATIC, "static", "a", "carried", cwd=tmp_path)
    again, last = Trace(tmp_path / "a").read(0), Trace(tmp_path / "a").read(5)
    assert again.keys() == first.keys()
    assert all(np.array_equal(again[name], first[name]) for name in first)
    gradients = {n.removeprefix("gradient/") for n in last if n.startswith("gradient/")}
    assert len(gradients) == 4 * 2 + 4 * 4 + 2
    # before and after clipping, which writes over it
    assert all(
        (last[f"gradient/{n}"] != last[f"clipped_gradient/{n}"]).any() for n in gradients
    )
    (module,) = (
        each
        for each in Trace(tmp_path / "a").header["facts"]["modules"]
        if each["kind"] == "LSTM"
    )
    assert len(module["parameters"]) == 16


def test_what_cannot_be_seen_of_a_static_graph_is_refused(tmp_path):
    code = """
import parity.paddle
import numpy as np
import paddle
from parity.base.errors import UsageError

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
executor = paddle.static.Executor()
compiled = paddle.static.CompiledProgram(main)
feed = {"x": np.ones((1, 2), "float32")}
with paddle.static.program_guard(main, startup):
    loss = paddle.mean(paddle.nn.Linear(2, 2)(paddle.static.data("x", [None, 2])))
    optimizer = paddle.optimizer.SGD(0.1)
def refused(run=lambda: None):
    try:
        with parity.paddle.watch("a", main, optimizer):
            run()
    except UsageError as error:
        print(error)
refused()
with paddle.static.program_guard(main, startup):
    optimizer.minimize(loss)
refused(lambda: executor.run(main, feed, [loss]))
executor.run(startup)
refused(lambda: executor.run(compiled, feed, [loss]))
refused(lambda: executor.run(main, feed, [loss], "feed"))
refused(lambda: executor.run(main.clone(), feed, [loss]))
paddle.__version__ = "3.3.1"  # which cannot stand beside 2.6
refused()
"""
    told = called("-c", code, cwd=tmp_path)
    for line, part in zip(
        told.splitlines(),
        (
            *("after optimizer.minimize", "has no value", "CompiledProgram", "its place"),
            *("no step", "allowed: one of Paddle 2, or dygraph"),
        ),
        strict=True,
    ):
        assert part in line


def test_a_static_graph_computes_what_it_did_unwatched(tmp_path):
    watched = called("-c", STATIC, "digest", "a", cwd=tmp_path)
    assert watched == called("-c", STATIC, "digest", cwd=tmp_path)
    assert Trace(tmp_path / "a").numbers() == [0, 2, 4]


TWO = """
import numpy as np, parity.paddle, paddle
model = paddle.nn.Sequential(paddle.nn.Embedding(5, 4), paddle.nn.Linear(4, 2))
adam = paddle.optimizer.Adam(0.1, parameters=model[1].parameters())
schedule = paddle.optimizer.lr.ExponentialDecay(0.5, 0.9)
sgd = paddle.optimizer.Momentum(schedule, parameters=model[0].parameters())
with parity.paddle.watch("a", model, [adam, sgd]):
    for _ in range(2):
        (model(paddle.to_tensor([1, 2])) ** 2).mean().backward()
        adam.step()
        sgd.step()
        adam.clear_grad()
        sgd.clear_grad()
"""


def test_the_last_of_several_optimisers_ends_a_step(tmp_path):
    called("-c", TWO, cwd=tmp_path)
    trace = Trace(tmp_path / "a")
    assert trace.numbers() == [0, 1]
    for number in trace.numbers():
        tensors = trace.read(number)
        gradients = {n for n in tensors if n.startswith("gradient/")}
        assert gradients == {f"gradient/{n}" for n in ("0.weight", "1.weight", "1.bias")}
        assert {"optimizer/0.weight/velocity", "optimizer/1.bias/moment1"} <= tensors.keys()
    optimizer = trace.header["facts"]["optimizer"]
    assert (optimizer["kind"], optimizer["settings"]["learning_rate"]) == ("Momentum", 0.5)


DECAYS = """
import parity.paddle
import paddle
from paddle import nn, optimizer
from paddle.regularizer import L1Decay, L2Decay

def train(folder, kind, **options):
    bias = paddle.ParamAttr(regularizer=L2Decay(0.5)) if folder == "own" else None
    model = nn.Linear(4, 2, bias_attr=bias)
    rule = kind(0.1, parameters=model.parameters(), **options)
    with parity.paddle.watch(folder, model, rule):
        model(paddle.ones([3, 4])).sum().backward()
        rule.step()

train("none", optimizer.Momentum)
train("adam", optimizer.Adam, weight_decay=0.25)
train("l1", optimizer.Adam, weight_decay=L1Decay(0.25))
train("momentum", optimizer.Momentum, weight_decay=0.25)
train("own", optimizer.SGD, weight_decay=0.25)
takes = lambda name: ".w_" in name
train("adamw", optimizer.AdamW, weight_decay=0.25, apply_decay_param_fun=takes)
leaves = lambda parameter: ".b_" in parameter.name
options = dict(lamb_weight_decay=0.25, exclude_from_weight_decay_fn=leaves)
train("lamb", optimizer.Lamb, **options)
"""


def test_a_weight_s_decay_is_stated_wherever_paddle_keeps_it(tmp_path):
    called("-c", DECAYS, cwd=tmp_path)

    def decay(rule):
        return rule["settings"]["weight_decay"]

    for folder, whole, of_each in (
        ("none", 0.0, {}),
        ("adam", 0.25, {}),
        ("l1", "L1 0.25", {}),
        ("momentum", 0.25, {}),
        ("own", 0.25, {"weight": 0.25, "bias": 0.5}),
        ("adamw", 0.25, {"weight": 0.25, "bias": 0.0}),
        ("lamb", 0.25, {"weight": 0.25, "bias": 0.0}),
    ):
        facts = Trace(tmp_path / folder).header["facts"]
        found = {
            name: decay(each) for each in facts["optimizers"] for name in each["parameters"]
        }
        assert (decay(facts["optimizer"]), found) == (whole, of_each)


SPARSE = """
import parity.paddle
import paddle

for sparse in (False, True):
    paddle.seed(1)
    model = paddle.nn.Embedding(11, 4, sparse=sparse)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with parity.paddle.watch(str(sparse), model, optimizer):
        for _ in range(2):
            (model(paddle.to_tensor([[1, 2, 2, 5]])) ** 2).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
"""


def test_a_sparse_gradient_is_that_of_the_whole_table(tmp_path):
    called("-c", SPARSE, cwd=tmp_path)
    assert_match(tmp_path / "False", tmp_path / "True")
    assert np.count_nonzero(Trace(tmp_path / "True").read(1)["gradient/weight"]) == 12


def test_tensorflow_imported_first_is_refused(tmp_path):
    code = (
        "import sys, types\n"
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "import parity.paddle\n"
        "try:\n"
        "    with parity.paddle.watch('a', None, None): pass\n"
        "except Exception as error: print(error)\n"
    )
    told = called("-c", code, cwd=tmp_path)
    assert told.startswith("tensorflow was imported before paddle, which then crashes; allowed")


def test_the_page_s_lines_run_as_written(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(import parity.paddle\n.*?)```", text, re.DOTALL)
    assert len(codes) == 2
    for code, folder in zip(codes, ("port", "static"), strict=True):
        called("-c", code, cwd=tmp_path)
        assert Trace(tmp_path / "out" / folder).numbers() == list(range(20))
