"""What both sides of the example share: a small image classifier's sizes, weights and data.

Nothing here is special to this project: it stands for whatever a port and its original have in
common. `classifier_paddle.py` and `classifier_tensorflow.py` are the two trainings.
"""

import argparse
from pathlib import Path

import numpy as np

from parity import Tolerance

CLASSES, CHANNELS, BATCH = 3, 8, 16

# All exact in float32: Paddle keeps an epsilon of 1e-5 or a momentum of 0.9 in single precision
# even in a float64 training, and the comparison finds it (2e-11 of a gradient at step 2).
EPSILON = 2.0**-17  # of the layer norm; Keras's default is 1e-3
LEARNING_RATE, MOMENTUM = 0.0625, 0.75

RUN = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM, "batch": BATCH, "seed": 1}

# What is not listed is held to the bounds that `parity` has for it.
TOLERANCES = {
    "float64": {},
    "float32": {
        "forward": Tolerance(1e-4, 1e-4, reason="seen 8e-6 in 200 steps"),
        "gradient/conv/*": Tolerance(
            2e-4, 2e-4, reason="576 terms a sum; seen 2e-5 in 200 steps"
        ),
    },
}


def weights(dtype: str) -> dict[str, np.ndarray]:
    """Return the initial weights by shared name; kernels are [..., in, out]."""
    draw = np.random.default_rng(RUN["seed"])
    shapes = {
        "conv/kernel": (3, 3, 1, CHANNELS),
        "conv/bias": (CHANNELS,),
        "norm/scale": (CHANNELS,),
        "norm/offset": (CHANNELS,),
        "hidden/kernel": (CHANNELS, CHANNELS),
        "hidden/bias": (CHANNELS,),
        "output/kernel": (CHANNELS, CLASSES),
        "output/bias": (CLASSES,),
    }
    return {name: draw.normal(0, 0.5, shape).astype(dtype) for name, shape in shapes.items()}


def batch(step: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images [batch, 8, 8, 1], a bar in each that is flat, upright or slanting, and
    labels [batch].
    """
    draw = np.random.default_rng([RUN["seed"], step])
    labels = draw.integers(0, CLASSES, BATCH)
    images = draw.normal(0, 0.3, (BATCH, 8, 8, 1))
    for image, label, place in zip(images, labels, draw.integers(0, 6, BATCH), strict=True):
        for i in range(8):
            image[[(place, i), (i, place), (i, (i + place) % 8)][label]] += 1
    return images.astype(dtype), labels


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the command line of both sides."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="where to record the training")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--steps", type=int, default=20)
    return parser
