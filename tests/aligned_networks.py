"""Four networks: `python aligned_networks.py torch|paddle|keras FOLDER`.

Each records three steps in FOLDER/FRAMEWORK/NETWORK, from weights of its own. A port then
aligns itself with the one in PyTorch, takes over its weights, and records itself once more in
FOLDER/FRAMEWORK-carried/NETWORK.

A convolution before a normalisation has no bias, and two networks have SGD: gradients that are
zero but for rounding would become steps of Adam.
"""

import os
import sys
from pathlib import Path

import numpy as np

from parity.cli.command_line import main as command
from parity.cli.commands import parity

NETWORKS = ("lstm", "gru", "encoder", "conv")
PLAIN = ("encoder", "conv")  # whose optimiser is SGD
SHAPES = {"conv": (1, 8, 6), "encoder": (5, 4)}  # of a row, where it is no text
STEPS, RATE, HEADS = 3, 0.01, 2
SIZE, ROWS = 8, 6


class Run:
    """A network, and how it is trained.

    Attributes:
      exact: whether it is without what Keras cannot align: an LSTM's second bias stands still,
        Adam's epsilon is too small for its place to matter, and no word is in a batch twice.
      words: the number of words in the vocabulary.
    """

    def __init__(self, network, exact=False, dtype="float64", words=11):
        self.network, self.exact, self.dtype, self.words = network, exact, dtype, words
        self.epsilon = 1e-30 if exact else 1e-8
        self.betas = (0.875, 0.9990234375) if exact else (0.9, 0.999)

    @property
    def frozen(self):
        """Return whether the second bias of an LSTM stands still."""
        return self.exact and self.network == "lstm"

    def made(self, framework):
        """Return a model of more than these four; None: it is one of them."""

    def given(self, **settings):
        """Return the settings that keep a model from its framework's defaults."""
        return settings

    def batches(self):
        draw = np.random.default_rng(3 + self.exact)
        for _ in range(STEPS):
            if self.network in SHAPES:
                x = draw.random((ROWS, *SHAPES[self.network])).astype(self.dtype)
            elif self.exact:
                x = draw.permutation(self.words)[: ROWS * 5].reshape(-1, 5)
            else:
                x = draw.integers(0, self.words, (ROWS, 5))
            yield x, draw.random((ROWS, 3)).astype(self.dtype)


def with_torch(run, folder):
    network = run.network
    import torch
    from torch import nn

    import parity.torch

    class Recurrent(nn.Module):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(run.words, 6)
            self.rnn = kind(6, SIZE, layers, batch_first=True)
            self.out = nn.Linear(SIZE, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, SIZE)
            layer = nn.TransformerEncoderLayer(
                SIZE, HEADS, 16, batch_first=True, **run.given(dropout=0.0)
            )
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.out = nn.Linear(SIZE, 3)

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

    torch.manual_seed(1 + run.exact)
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
    file = folder / f"{run.network}.safetensors"
    if file.exists():
        parity.torch.load(model, file)
    with parity.torch.watch(folder / run.network, model, optimizer):
        for x, y in run.batches():
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_paddle(run, folder):
    network = run.network
    import parity.paddle  # isort: skip
    import paddle
    from paddle import nn

    class Recurrent(nn.Layer):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(run.words, 6)
            self.rnn = kind(6, SIZE, layers)
            self.out = nn.Linear(SIZE, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Layer):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(SIZE, 3)
            self.first = nn.Linear(4, SIZE)
            layer = nn.TransformerEncoderLayer(SIZE, HEADS, 16, **run.given(dropout=0.0))
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
    file = folder / f"{run.network}.safetensors"
    if file.exists():
        parity.paddle.load(model, file)
    with parity.paddle.watch(folder / run.network, model, optimizer):
        for x, y in run.batches():
            loss = ((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def with_keras(run, folder):
    network = run.network
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
        hidden = layers.Dense(SIZE)(x)
        for _ in range(2):
            seen = layers.MultiHeadAttention(HEADS, SIZE // HEADS)(hidden, hidden)
            hidden = layers.LayerNormalization(**run.given(epsilon=1e-5))(hidden + seen)
            inner = layers.Dense(SIZE)(layers.Dense(16, activation="relu")(hidden))
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
        "lstm": lambda: recurrent(layers.LSTM(SIZE)),
        "gru": lambda: recurrent(layers.GRU(SIZE, return_sequences=True), layers.GRU(SIZE)),
        "encoder": encoder,
        "conv": conv,
    }
    model = run.made("keras") or made[network]()
    if network in PLAIN:
        optimizer = keras.optimizers.SGD(RATE)
    else:  # 1e-7 is Keras's own default
        epsilon = run.epsilon if run.exact else 1e-7
        optimizer = keras.optimizers.Adam(RATE, *run.betas, epsilon)
    file = folder / f"{run.network}.safetensors"
    if file.exists():
        parity.keras.load(model, file)
    with parity.keras.watch(folder / run.network, model, optimizer):
        for x, y in run.batches():
            x = np.moveaxis(x, 1, 3) if x.ndim == 4 else x
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)


def main(framework, folder):
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[framework]
    for run in map(Run, NETWORKS):
        train(run, folder / framework)
        if framework == "torch":
            continue
        given, own = (folder / side / run.network for side in ("torch", framework))
        carried = folder / f"{framework}-carried"
        carried.mkdir(exist_ok=True)
        file = folder / f"{framework}-{run.network}.yaml"
        weights = carried / f"{run.network}.safetensors"
        assert command(parity, map(str, ["align", given, own, "-o", file])) == 0
        assert command(parity, map(str, ["weights", given, "--map", file, "-o", weights])) == 0
        train(run, carried)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
