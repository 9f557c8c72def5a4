"""The language model as users of Keras would write it."""

from typing import Any

import keras
import tensorflow as tf

from parity.twins.spec.networks.language_model import LanguageModelSpec


class LanguageModel(keras.Model):
    """Embedding, LSTM layers without dropout, projection.

    Args:
      model: LanguageModelSpec.

    Attributes:
      canonical: canonical name -> variable.
    """

    def __init__(self, model: LanguageModelSpec):
        super().__init__(name="language_model")  # a model's name must not begin with "_"
        self.embed = keras.layers.Embedding(model.vocabulary_size, model.embedding_size)
        self.recurrent = [
            keras.layers.LSTM(
                model.hidden_size,
                return_sequences=True,
                return_state=True,
                unit_forget_bias=False,
            )
            for _ in range(model.num_layers)
        ]
        self.softmax = keras.layers.Dense(model.vocabulary_size)
        state = tf.zeros([1, model.num_layers, model.hidden_size], keras.config.floatx())
        self({"tokens": tf.zeros([1, 1], tf.int64), "h": state, "c": state})

    @property
    def canonical(self) -> dict[str, Any]:
        found = {
            "embed/table": self.embed.embeddings,
            "softmax/kernel": self.softmax.kernel,
            "softmax/bias": self.softmax.bias,
        }
        for k, layer in enumerate(self.recurrent):
            found |= {
                f"lstm_{k}/input_kernel": layer.cell.kernel,
                f"lstm_{k}/recurrent_kernel": layer.cell.recurrent_kernel,
                f"lstm_{k}/bias": layer.cell.bias,
            }
        return found

    def call(self, feed: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        hidden, states = self.embed(feed["tokens"]), []
        for k, layer in enumerate(self.recurrent):
            hidden, *state = layer(hidden, initial_state=[feed["h"][:, k], feed["c"][:, k]])
            states.append(state)
        h, c = (tf.stack(parts, axis=1) for parts in zip(*states, strict=True))
        return self.softmax(hidden), {"h": h, "c": c}
