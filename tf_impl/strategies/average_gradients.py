"""Gradients averaged by tower, as in the multi-GPU tutorials.

Each tower's mean loss is differentiated by itself, and the update reads the average of the
towers' gradients. The average is weighted by each tower's real tokens: with equal weights it
would be another training as soon as the rows of two towers have unequal numbers of tokens.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_impl.strategies.towers import Towers

tf1 = tf.compat.v1


class AverageGradients(Towers):
    """Differentiates each tower's mean loss by itself, then averages over the towers."""

    def _combine(self, losses, parameters, shares):
        # Of its share of the global loss, a tower's mean loss is that over its share of tokens.
        means = [
            tf.math.divide_no_nan(loss, share)
            for loss, share in zip(losses, shares, strict=True)
        ]
        return average_gradients([tower_gradients(mean, parameters) for mean in means], shares)


def tower_gradients(loss: tf.Tensor, variables: Sequence) -> list[tf.Tensor]:
    """Return the gradients of one tower's loss, one dense tensor per variable.

    Args:
      loss: [], the tower's own.
      variables: trainable variables.
    """
    gradients = tf1.gradients(loss, variables, colocate_gradients_with_ops=True)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def average_gradients(
    towers: Sequence[Sequence[tf.Tensor]], weights: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the weighted average of the towers' gradients, one tensor per variable.

    Args:
      towers: for each tower, a gradient per variable.
      weights: one [] per tower; their sum is one.

    Source: the function of this name in TensorFlow's CIFAR-10 multi-GPU tutorial, there with
    equal weights.
    """
    return [
        tf.add_n(
            [weight * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        )
        for gradients in zip(*towers, strict=True)
    ]
