"""A network and a strategy from outside the tree: what PARITY_PLUGINS loads in
test_strategies_plugins.py.

The network predicts each token from the one before alone; the strategy puts all towers on the
first device.
"""

from dataclasses import dataclass

import numpy as np

from parity.twins.oracle.layers import project
from parity.twins.spec.fields import check_fields, option
from parity.twins.spec.networks import register_network
from parity.twins.spec.networks.language_model import LanguageModelText
from parity.twins.spec.networks.network import Network, Parameter, Preset
from parity.twins.spec.strategies import StrategyEntry
from parity.twins.spec.training import TrainSpec
from tf_impl.strategies import STRATEGIES


@dataclass(frozen=True)
class BigramSpec:
    """An embedding and a projection."""

    vocabulary_size: int = option(50, "most tokens kept in the vocabulary", at_least=3)
    width: int = option(6, "width of the embedding", at_least=1)
    keep: float = option(0.8, "probability that dropout keeps a unit", above=0, at_most=1)
    initial_scale: float = option(0.5, "every parameter starts in [-scale, scale)", above=0)

    def __post_init__(self) -> None:
        check_fields(self)


def build(layers, outputs, model, inputs, *, transpose, total):
    """Build the network on one replica, in either framework."""
    batch, tap = inputs.batch, inputs.tap
    tokens, targets = (transpose(batch[name], [1, 0]) for name in ("tokens", "targets"))
    hidden = layers.embedding(
        tokens, "embed", model.vocabulary_size, model.width, inputs.scale.dtype
    )
    hidden = layers.dropout(tap("embedded", hidden), inputs.masks.get("embedded"))
    rows = layers.real_rows(hidden, batch["lengths"])
    logits = layers.linear(rows, "softmax", model.vocabulary_size)
    losses = layers.token_cross_entropy(logits, layers.real_rows(targets, batch["lengths"]))
    tap("logits", logits)
    tap("token_loss", losses)
    return outputs(total(losses) * inputs.scale, {}, tap.activations)


def in_paddle(model, inputs):
    """Build it in Paddle."""
    import paddle

    from paddle_impl import layers, networks

    return build(
        layers,
        networks.Outputs,
        model,
        inputs,
        transpose=paddle.transpose,
        total=paddle.sum,
    )


def in_tensorflow(model, inputs):
    """Build it in TensorFlow."""
    import tensorflow as tf

    from tf_impl import layers, networks

    return build(
        layers,
        networks.Outputs,
        model,
        inputs,
        transpose=tf.transpose,
        total=tf.reduce_sum,
    )


def in_numpy(model, weights, batch, masks, state, divisor=None):
    """Run it forward and backward; see parity/twins/oracle/language_model.py."""
    real = np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]
    mask = masks.get("embedded", 1.0)
    embedded = weights["embed/table"][batch["tokens"]]
    projected, (d_x, d_kernel, d_bias) = project(
        embedded * mask,
        real,
        batch["targets"],
        weights["softmax/kernel"],
        weights["softmax/bias"],
        divisor,
    )
    d_table = np.zeros_like(weights["embed/table"])
    np.add.at(d_table, batch["tokens"], d_x * mask)
    activations = {"embedded": embedded * real[:, :, None], **projected}
    gradients = {
        "embed/table": d_table,
        "softmax/kernel": d_kernel,
        "softmax/bias": d_bias,
    }
    return activations, gradients


register_network(
    Network(
        name="bigram",
        model=BigramSpec,
        text=LanguageModelText,
        presets={
            "tiny": Preset(
                BigramSpec(),
                LanguageModelText(batching="sentences", time=8),
                TrainSpec(batch_size=7, optimizer="adam", learning_rate=0.01),
            )
        },
        benchmarks=("tiny",),
        builders={
            "paddle": "toy_plugin:in_paddle",
            "tensorflow": "toy_plugin:in_tensorflow",
        },
        oracle="toy_plugin:in_numpy",
        load_text="data.load:load_stream_text",
        batch={
            "tokens": ("batch", "time"),
            "targets": ("batch", "time"),
            "lengths": ("batch",),
        },
        lengths={"time": "lengths"},
        vocabularies={"tokens": "vocabulary_size", "targets": "vocabulary_size"},
        parameters=lambda model: (
            Parameter("embed/table", (model.vocabulary_size, model.width)),
            Parameter("softmax/kernel", (model.width, model.vocabulary_size)),
            Parameter("softmax/bias", (model.vocabulary_size,)),
        ),
        state=lambda model: {},
        masks=lambda model: {"embedded": ("batch", "time", model.width)},
        activations=lambda model: {
            "embedded": ("batch", "time", model.width),
            "logits": ("batch", "time", model.vocabulary_size),
            "token_loss": ("batch", "time"),
        },
    )
)
STRATEGIES.register(
    StrategyEntry("one-device", "toy_strategy:OneDevice", "all towers on the first device")
)
