"""Paddle trainings that record themselves: what is seen, and that it changes nothing.

Each runs in a process of its own: another test's process may hold TensorFlow already.
"""

import re
from pathlib import Path

import numpy as np
from conftest import run_python
from moved_numbers import assert_moved

from parity import Trace

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

    def forward(self, x):
        hidden = self.rnn(x)[0][:, -1]
        return self.out(self.norm(paddle.nn.functional.relu_(self.inner(hidden))))

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
    layers = ["rnn/0", "rnn/1/0", "rnn/1/1", "inner", "norm", "out", "model"]
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
    assert_moved(tmp_path / "a", tmp_path / "moved", "out")


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
    (code,) = re.findall(r"```python\n(import parity.paddle\n.*?)```", text, re.DOTALL)
    called("-c", code, cwd=tmp_path)
    assert Trace(tmp_path / "out" / "port").numbers() == list(range(20))
