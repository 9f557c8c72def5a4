"""What both sides of the example share: a small image classifier's sizes, weights and data.

Nothing here is special to this project: this module stands for whatever a port and its original
have in common. `classifier_paddle.py` and `classifier_tensorflow.py` are the two trainings.
"""

import argparse
from pathlib import Path

import numpy as np

from parity import Tolerance

CLASSES, CHANNELS, BATCH = 3, 8, 16

# These are exact in float32. Paddle keeps them in single precision even in a float64 training,
# and the comparison would find an epsilon of 1e-5 or a momentum of 0.9 (2e-11 of a gradient at
# step 2).
EPSILON = 2.0**-17  # of the layer norm; Keras's default is 1e-3
LEARNING_RATE, MOMENTUM = 0.0625, 0.75

RUN = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM, "batch": BATCH, "seed": 1}

# A rung or tensor that is not listed gets parity's own bounds.
TOLERANCES = {
    "float64": {},
    "float32": {
        "forward": Tolerance(1e-4, 1e-4, reason="seen 8e-6 in 200 steps"),
        "gradient/conv/*": Tolerance(
            2e-4, 2e-4, reason="576 terms in each sum; seen 2e-5 in 200 steps"
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
    """Return images of bars, and which kind of bar each one is.

    Returns:
      images: [batch, 8, 8, 1], each with one bar that is flat, upright or slanting.
      labels: [batch], the kinds in this order.
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
