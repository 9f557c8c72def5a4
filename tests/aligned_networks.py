"""Four networks: `python aligned_networks.py torch|paddle|keras FOLDER [RUN ...]`.

A run is a network, or NETWORK-SEED: that one in float32, with a seed, sizes and a number of
rows of its own, and without what Keras cannot align: an LSTM's second bias stands still, Adam's
epsilon is too small for its place to matter, and no word is in a batch twice.

Each records three steps in FOLDER/FRAMEWORK/RUN, from weights of its own. A port then aligns
itself with the one in PyTorch, takes over its weights, and records itself once more in
FOLDER/FRAMEWORK-carried/RUN. Of a run with a seed, PyTorch measures the bounds, too, and writes
FOLDER/torch/RUN.json.

A convolution before a normalisation has no bias, and two networks have SGD: gradients that are
zero but for rounding would become steps of Adam.
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np

from parity import Trace
from parity.cli.command_line import main as command
from parity.cli.commands import parity
from parity.compare.measured_bounds import measure
from parity.pair.perturbation import VARIABLE, environment

NETWORKS = ("lstm", "gru", "encoder", "conv")
PLAIN = ("encoder", "conv")  # whose optimiser is SGD
SHAPES = {"conv": (1, 8, 6), "encoder": (5, 4)}  # of a row, where it is no text
STEPS, RATE, HEADS = 3, 0.01, 2


class Run:
    """A network, and the seed, type and sizes of its training."""

    def __init__(self, name):
        self.name = name
        self.network, _, seed = name.partition("-")
        self.seed, self.dtype = int(seed or 0), "float32" if seed else "float64"
        self.size, self.rows, self.words, self.epsilon = 8, 6, 11, 1e-8
        self.betas = 0.9, 0.999
        if seed:
            draw = np.random.default_rng(self.seed)
            self.size, self.rows = 2 * int(draw.integers(2, 17)), int(draw.integers(1, 17))
            self.words, self.epsilon = 100, 1e-30
            self.betas = 0.875, 0.9990234375

    @property
    def frozen(self):
        """Return whether the second bias of an LSTM stands still."""
        return self.seed and self.network == "lstm"

    def made(self, framework):
        """Return a model of more than these four; None: it is one of them."""

    def given(self, **settings):
        """Return the settings that keep a model from its framework's defaults."""
        return settings

    def batches(self):
        draw = np.random.default_rng(3 + self.seed)
        for _ in range(STEPS):
            if self.network in SHAPES:
                x = draw.random((self.rows, *SHAPES[self.network]))
            elif self.seed:
                x = draw.permutation(self.words)[: self.rows * 5].reshape(-1, 5)
            else:
                x = draw.integers(0, self.words, (self.rows, 5))
            x = x.astype(self.dtype) if x.dtype.kind == "f" else x
            yield x, draw.random((self.rows, 3)).astype(self.dtype)


def with_torch(run, folder):
    size, network = run.size, run.network
    import torch
    from torch import nn

    import parity.torch

    class Recurrent(nn.Module):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(run.words, 6)
            self.rnn = kind(6, size, layers, batch_first=True)
            self.out = nn.Linear(size, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, size)
            layer = nn.TransformerEncoderLayer(
                size, HEADS, 16, batch_first=True, **run.given(dropout=0.0)
            )
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.out = nn.Linear(size, 3)

        def forward(self, x):
            return self.out(self.encoder(self.first(x)).mean(1))

    def conv():
        layers = [
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 4 * 3, 3))

    torch.manual_seed(1 + run.seed)
    made = {
        "lstm": lambda: Recurrent(nn.LSTM, 1),
        "gru": lambda: Recurrent(nn.GRU, 2),
        "encoder": Encoder,
        "conv": conv,
    }
    model = (run.made("torch") or made[network]()).to(getattr(torch, run.dtype))
    if network in PLAIN:
        optimizer = torch.optim.SGD(model.parameters(), RATE)
    else:
        optimizer = torch.optim.Adam(model.parameters(), RATE, run.betas, run.epsilon)
    if run.frozen:
        (group,), frozen = optimizer.param_groups, model.rnn.bias_hh_l0
        group["params"] = [each for each in group["params"] if each is not frozen]
        optimizer.add_param_group({"params": [frozen], "lr": 0.0})
    file = folder / f"{run.name}.safetensors"
    if file.exists():
        parity.torch.load(model, file)
    with parity.torch.watch(folder / run.name, model, optimizer):
        for x, y in run.batches():
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_paddle(run, folder):
    size, network = run.size, run.network
    import parity.paddle  # isort: skip
    import paddle
    from paddle import nn

    class Recurrent(nn.Layer):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(run.words, 6)
            self.rnn = kind(6, size, layers)
            self.out = nn.Linear(size, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Layer):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(size, 3)
            self.first = nn.Linear(4, size)
            layer = nn.TransformerEncoderLayer(size, HEADS, 16, **run.given(dropout=0.0))
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x):
            return self.out(self.encoder(self.first(x)).mean(1))

    def conv():
        layers = [
            nn.Conv2D(1, 4, 3, padding=1, bias_attr=False),
            nn.BatchNorm2D(4),
            nn.ReLU(),
            nn.MaxPool2D(2),
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 4 * 3, 3))

    paddle.set_default_dtype(run.dtype)
    paddle.seed(1)
    made = {
        "lstm": lambda: Recurrent(nn.LSTM, 1),
        "gru": lambda: Recurrent(nn.GRU, 2),
        "encoder": Encoder,
        "conv": conv,
    }
    model = run.made("paddle") or made[network]()
    if run.frozen:
        model.rnn.bias_hh_l0.optimize_attr["learning_rate"] = 0.0
    if network in PLAIN:
        optimizer = paddle.optimizer.SGD(RATE, parameters=model.parameters())
    else:
        optimizer = paddle.optimizer.Adam(
            RATE, *run.betas, run.epsilon, parameters=model.parameters()
        )
    file = folder / f"{run.name}.safetensors"
    if file.exists():
        parity.paddle.load(model, file)
    with parity.paddle.watch(folder / run.name, model, optimizer):
        for x, y in run.batches():
            loss = ((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def with_keras(run, folder):
    size, network = run.size, run.network
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras
    import tensorflow as tf
    from keras import layers

    import parity.keras

    def recurrent(*stack):
        tokens = keras.Input((5,), dtype="int64")
        hidden = layers.Embedding(run.words, 6)(tokens)
        for layer in stack:
            hidden = layer(hidden)
        return keras.Model(tokens, layers.Dense(3)(hidden))

    def encoder():
        x = keras.Input((5, 4))
        hidden = layers.Dense(size)(x)
        for _ in range(2):
            seen = layers.MultiHeadAttention(HEADS, size // HEADS)(hidden, hidden)
            hidden = layers.LayerNormalization(**run.given(epsilon=1e-5))(hidden + seen)
            inner = layers.Dense(size)(layers.Dense(16, activation="relu")(hidden))
            hidden = layers.LayerNormalization(**run.given(epsilon=1e-5))(hidden + inner)
        return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))

    def conv():
        inputs = [keras.Input((8, 6, 1)), layers.Conv2D(4, 3, padding="same", use_bias=False)]
        norm = layers.BatchNormalization(**run.given(epsilon=1e-5, momentum=0.9))
        rest = [layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)]
        return keras.Sequential([*inputs, norm, *rest])

    keras.utils.clear_session()
    keras.config.set_floatx(run.dtype)
    keras.utils.set_random_seed(1)
    made = {
        "lstm": lambda: recurrent(layers.LSTM(size)),
        "gru": lambda: recurrent(layers.GRU(size, return_sequences=True), layers.GRU(size)),
        "encoder": encoder,
        "conv": conv,
    }
    model = run.made("keras") or made[network]()
    if network in PLAIN:
        optimizer = keras.optimizers.SGD(RATE)
    else:  # 1e-7 is Keras's own default
        epsilon = run.epsilon if run.seed else 1e-7
        optimizer = keras.optimizers.Adam(RATE, *run.betas, epsilon)
    file = folder / f"{run.name}.safetensors"
    if file.exists():
        parity.keras.load(model, file)
    with parity.keras.watch(folder / run.name, model, optimizer):
        for x, y in run.batches():
            x = np.moveaxis(x, 1, 3) if x.ndim == 4 else x
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)


def measured(run, folder, train=with_torch):
    """Measure the bounds of a side's training of a run."""
    trace, moved = Trace(folder / run.name), []
    for seed in (None, *range(5)):
        to = folder / f"{run.name}-moved" / str(seed)
        os.environ |= environment(trace.folder, to, seed)
        train(run, folder)
        moved.append(Trace(to))
    del os.environ[VARIABLE]
    measure(trace, *moved[:1], moved[1:]).write(folder / f"{run.name}.json")
    shutil.rmtree(folder / f"{run.name}-moved")


def main(framework, folder, names):
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[framework]
    for run in map(Run, names):
        train(run, folder / framework)
        if framework == "torch":
            if run.seed:
                measured(run, folder / framework)
            continue
        given, file = folder / "torch" / run.name, folder / f"{framework}-{run.name}.yaml"
        carried = folder / f"{framework}-carried"
        carried.mkdir(exist_ok=True)
        words = ["align", given, folder / framework / run.name, "-o", file]
        assert command(parity, map(str, words)) == 0
        weights = carried / f"{run.name}.safetensors"
        assert command(parity, map(str, ["weights", given, "--map", file, "-o", weights])) == 0
        train(run, carried)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or NETWORKS)
