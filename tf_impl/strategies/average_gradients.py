"""Averages the gradients of the towers, as the multi-GPU tutorials do.

Each tower's mean loss is differentiated separately, and the update uses the average of the
towers' gradients. By default the average is weighted by each tower's real tokens, and is then
the gradient of the global loss. With the setting `shard_weights` "equal", as the tutorials
have it, it is another gradient as soon as two towers have different numbers of tokens.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_impl.strategies.towers import Towers

tf1 = tf.compat.v1


class AverageGradients(Towers):
    """Differentiates each tower's mean loss separately, then averages over the towers."""

    def _combine(self, losses, parameters, shares):
        # a tower's mean loss is its share of the global loss divided by its share of the tokens
        means = [
            tf.math.divide_no_nan(loss, share)
            for loss, share in zip(losses, shares, strict=True)
        ]
        weights = shares
        if self.build.settings.shard_weights == "equal":
            weights = [tf.add_n(shares) / self.replicas] * self.replicas
        return average_gradients([tower_gradients(mean, parameters) for mean in means], weights)


def tower_gradients(loss: tf.Tensor, variables: Sequence) -> list[tf.Tensor]:
    """Return the gradients of one tower's loss, one dense tensor per variable.

    Args:
      loss: the tower's loss, [].
      variables: trainable variables.
    """
    gradients = tf1.gradients(loss, variables, colocate_gradients_with_ops=True)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def average_gradients(
    towers: Sequence[Sequence[tf.Tensor]], weights: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the weighted average of the towers' gradients, one tensor per variable.

    Args:
      towers: for each tower, one gradient per variable.
      weights: one [] per tower; with a loss per token their sum is one.

    Source: the function of the same name in TensorFlow's CIFAR-10 multi-GPU tutorial, where the
    weights are equal.
    """
    return [
        tf.add_n(
            [weight * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        )
        for gradients in zip(*towers, strict=True)
    ]
