"""Trainings that go on from the middle: `optimizer_states.py FRAMEWORK FOLDER [GIVER ...]`.

Each trains six steps by Adam and by SGD, and records them in FOLDER/FRAMEWORK/KIND. With givers
it trains the last three alone, from what FOLDER/FRAMEWORK/KIND-from-GIVER.safetensors holds.

Float32 holds the betas, and Keras's velocity, which is the momentum times the rate, all of it.
"""

import os
import sys
from pathlib import Path

import numpy as np

KINDS, STEPS, RATE, BETAS = ("adam", "sgd"), 3, 2**-7, (0.875, 0.9990234375)


def batches(file):
    draw = np.random.default_rng(1)
    found = [(draw.normal(size=(6, 4)), draw.normal(size=(6, 3))) for _ in range(2 * STEPS)]
    return found[STEPS:] if file else found


def with_torch(kind, folder, file):
    import torch

    import parity.torch

    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    model = torch.nn.Sequential(*layers).double()
    make = {
        "adam": lambda p: torch.optim.Adam(p, RATE, BETAS, 1e-30),
        "sgd": lambda p: torch.optim.SGD(p, RATE, momentum=0.875),
    }
    optimizer = make[kind](model.parameters())
    if file:
        parity.torch.load(model, file, optimizer)
    with parity.torch.watch(folder, model, optimizer):
        for x, y in batches(file):
            loss = ((model(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_paddle(kind, folder, file):
    import parity.paddle  # isort: skip
    import paddle

    paddle.set_default_dtype("float64")
    layers = paddle.nn.Linear(4, 5), paddle.nn.Tanh(), paddle.nn.Linear(5, 3)
    model = paddle.nn.Sequential(*layers)
    given = {"parameters": model.parameters()}
    make = {
        "adam": lambda: paddle.optimizer.Adam(RATE, *BETAS, 1e-30, **given),
        "sgd": lambda: paddle.optimizer.Momentum(RATE, 0.875, **given),
    }
    optimizer = make[kind]()
    if file:
        parity.paddle.load(model, file, optimizer)
    with parity.paddle.watch(folder, model, optimizer):
        for x, y in batches(file):
            loss = ((model(paddle.to_tensor(x)) - paddle.to_tensor(y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()


def with_keras(kind, folder, file):
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    import keras

    import parity.keras

    keras.utils.clear_session()
    keras.config.set_floatx("float64")
    layers = keras.layers.Dense(5), keras.layers.Activation("tanh"), keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((4,)), *layers])
    make = {
        "adam": lambda: keras.optimizers.Adam(RATE, *BETAS, 1e-30),
        "sgd": lambda: keras.optimizers.SGD(RATE, momentum=0.875),
    }
    model.compile(make[kind](), loss="mse")
    if file:
        parity.keras.load(model, file, model.optimizer)
    x, y = map(np.concatenate, zip(*batches(file), strict=True))
    with parity.keras.watch(folder, model):
        model.fit(x, y, batch_size=6, shuffle=False, verbose=0)


def main(framework, folder, *givers):
    train = {"torch": with_torch, "paddle": with_paddle, "keras": with_keras}[framework]
    for kind in KINDS:
        for name in [f"{kind}-from-{giver}" for giver in givers] or [kind]:
            file = folder / framework / f"{name}.safetensors" if givers else None
            train(kind, folder / framework / name, file)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
