"""Four networks: `python aligned_networks.py torch|paddle|keras FOLDER [NETWORK ...]`.

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
STEPS, RATE, SIZE, HEADS = 3, 0.01, 8, 2


def batches(network):
    draw = np.random.default_rng(3)
    for _ in range(STEPS):
        if network == "conv":
            x = draw.random((6, 1, 8, 6))
        elif network == "encoder":
            x = draw.random((6, 5, 4))
        else:
            x = draw.integers(0, 11, (6, 5))
        yield x, draw.random((6, 3))


def with_torch(network, folder):
    import torch
    from torch import nn

    import parity.torch

    class Recurrent(nn.Module):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.rnn = kind(6, SIZE, layers, batch_first=True)
            self.out = nn.Linear(SIZE, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, SIZE)
            layer = nn.TransformerEncoderLayer(SIZE, HEADS, 16, dropout=0, batch_first=True)
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

    torch.manual_seed(1)
    made = {
        "lstm": lambda: Recurrent(nn.LSTM, 1),
        "gru": lambda: Recurrent(nn.GRU, 2),
        "encoder": Encoder,
        "conv": conv,
    }
    model = made[network]().double()
    kind = torch.optim.SGD if network in PLAIN else torch.optim.Adam
    optimizer = kind(model.parameters(), RATE)
    file = folder / f"{network}.safetensors"
    if file.exists():
        parity.torch.load(model, file)
    with parity.torch.watch(folder / network, model, optimizer):
        for x, y in batches(network):
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_paddle(network, folder):
    import parity.paddle  # isort: skip
    import paddle
    from paddle import nn

    class Recurrent(nn.Layer):
        def __init__(self, kind, layers):
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.rnn = kind(6, SIZE, layers)
            self.out = nn.Linear(SIZE, 3)

        def forward(self, tokens):
            return self.out(self.rnn(self.embed(tokens))[0][:, -1])

    class Encoder(nn.Layer):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(SIZE, 3)
            self.first = nn.Linear(4, SIZE)
            layer = nn.TransformerEncoderLayer(SIZE, HEADS, 16, dropout=0.0)
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

    paddle.set_default_dtype("float64")
    paddle.seed(1)
    made = {
        "lstm": lambda: Recurrent(nn.LSTM, 1),
        "gru": lambda: Recurrent(nn.GRU, 2),
        "encoder": Encoder,
        "conv": conv,
    }
    model = made[network]()
    kind = paddle.optimizer.SGD if network in PLAIN else paddle.optimizer.Adam
    optimizer = kind(RATE, parameters=model.parameters())
    file = folder / f"{network}.safetensors"
    if file.exists():
        parity.paddle.load(model, file)
    with parity.paddle.watch(folder / network, model, optimizer):
        for x, y in batches(network):
            loss = ((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def with_keras(network, folder):
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras
    import tensorflow as tf
    from keras import layers

    import parity.keras

    def recurrent(*stack):
        tokens = keras.Input((5,), dtype="int64")
        hidden = layers.Embedding(11, 6)(tokens)
        for layer in stack:
            hidden = layer(hidden)
        return keras.Model(tokens, layers.Dense(3)(hidden))

    def encoder():
        x = keras.Input((5, 4))
        hidden = layers.Dense(SIZE)(x)
        for _ in range(2):
            seen = layers.MultiHeadAttention(HEADS, SIZE // HEADS)(hidden, hidden)
            hidden = layers.LayerNormalization(epsilon=1e-5)(hidden + seen)
            inner = layers.Dense(SIZE)(layers.Dense(16, activation="relu")(hidden))
            hidden = layers.LayerNormalization(epsilon=1e-5)(hidden + inner)
        return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(hidden)))

    def conv():
        inputs = [keras.Input((8, 6, 1)), layers.Conv2D(4, 3, padding="same", use_bias=False)]
        norm = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)
        rest = [layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)]
        return keras.Sequential([*inputs, norm, *rest])

    keras.utils.clear_session()
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    made = {
        "lstm": lambda: recurrent(layers.LSTM(SIZE)),
        "gru": lambda: recurrent(layers.GRU(SIZE, return_sequences=True), layers.GRU(SIZE)),
        "encoder": encoder,
        "conv": conv,
    }
    model = made[network]()
    kind = keras.optimizers.SGD if network in PLAIN else keras.optimizers.Adam
    optimizer = kind(RATE)
    file = folder / f"{network}.safetensors"
    if file.exists():
        parity.keras.load(model, file)
    with parity.keras.watch(folder / network, model, optimizer):
        for x, y in batches(network):
            x = np.moveaxis(x, 1, 3) if network == "conv" else x
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(tf.constant(x), training=True) - y) ** 2)
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)


def main(framework, folder, networks):
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[framework]
    for network in networks:
        train(network, folder / framework)
        if framework == "torch":
            continue
        given, file = folder / "torch" / network, folder / f"{framework}-{network}.yaml"
        carried = folder / f"{framework}-carried"
        carried.mkdir(exist_ok=True)
        words = ["align", given, folder / framework / network, "-o", file]
        assert command(parity, map(str, words)) == 0
        weights = carried / f"{network}.safetensors"
        assert command(parity, map(str, ["weights", given, "--map", file, "-o", weights])) == 0
        train(network, carried)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or NETWORKS)
