"""A network with two mistakes, or none: `two_mistakes.py FRAMEWORK FOLDER [WEIGHTS]`.

That in a folder `original` has none. A port's second normalisation has another epsilon, and its
leaky ReLU another slope; the first normalisation and the linear layers are right.
"""

import os
import sys
from pathlib import Path

import numpy as np

RIGHT, WRONG = 2**-17, 2**-10  # epsilons that float32 holds, in which Paddle has them
BATCHES = np.random.default_rng(1).normal(size=(2, 6, 4))


def with_torch(folder, weights):
    import torch

    import parity.torch

    torch.manual_seed(1)
    slope, epsilon = (0.01, RIGHT) if folder.name == "original" else (0.3, WRONG)
    layers = torch.nn.Linear(4, 5), torch.nn.LayerNorm(5, RIGHT), torch.nn.LeakyReLU(slope)
    rest = torch.nn.Linear(5, 5), torch.nn.LayerNorm(5, epsilon), torch.nn.Linear(5, 3)
    model = torch.nn.Sequential(*layers, *rest).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.125)
    with parity.torch.watch(folder, model, optimizer):
        for x in BATCHES:
            optimizer.zero_grad()
            (model(torch.tensor(x)) ** 2).mean().backward()
            optimizer.step()


def with_paddle(folder, weights):
    import parity.paddle  # isort: skip
    import paddle
    from paddle import nn

    paddle.set_default_dtype("float64")
    layers = nn.Linear(4, 5), nn.LayerNorm(5, RIGHT), nn.LeakyReLU(0.3)
    rest = nn.Linear(5, 5), nn.LayerNorm(5, WRONG), nn.Linear(5, 3)
    model = nn.Sequential(*layers, *rest)
    optimizer = paddle.optimizer.SGD(0.125, parameters=model.parameters())
    if weights:
        parity.paddle.load(model, weights)
    with parity.paddle.watch(folder, model, optimizer):
        for x in BATCHES:
            (model(paddle.to_tensor(x)) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()


def with_keras(folder, weights):
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras

    import parity.keras

    keras.config.set_floatx("float64")
    layers = keras.layers
    first = [layers.Dense(5), layers.LayerNormalization(epsilon=RIGHT)]
    activation = layers.LeakyReLU(negative_slope=0.3)
    rest = [layers.Dense(5), layers.LayerNormalization(epsilon=WRONG), layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,)), *first, activation, *rest])
    model.compile(keras.optimizers.SGD(0.125), loss="mse")
    if weights:
        parity.keras.load(model, weights)
    with parity.keras.watch(folder, model):
        model.fit(np.concatenate(BATCHES), np.zeros((12, 3)), batch_size=6, shuffle=False)


if __name__ == "__main__":
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[sys.argv[1]]
    train(Path(sys.argv[2]), sys.argv[3] if sys.argv[3:] else None)
