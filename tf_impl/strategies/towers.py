"""Towers: one graph, in it the network once per replica, all on the same variables.

Each tower reads its own rows on its own device; the variables are shared by AUTO_REUSE, and one
update is made of the gradients of all towers' losses together.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_impl.strategies.synchronous import Synchronous

tf1 = tf.compat.v1


class Towers(Synchronous):
    """Differentiates the sum of all towers' losses: one backward pass over all of them."""

    def _replicate(self, function, devices, sizes, shared, **inputs):
        return make_parallel(function, devices, sizes, shared, **inputs)

    def _combine(self, losses, parameters, shares):
        return summed_gradients(losses, parameters)


def make_parallel(
    function: Callable,
    devices: Sequence[str],
    sizes: tf.Tensor,
    shared: dict | None = None,
    **inputs: tf.Tensor,
) -> list:
    """Build a function once per replica, each on its own rows and device.

    Variables made by `get_variable` inside are made by the first tower and used by all: the
    scope is entered with AUTO_REUSE. Layers that keep their own variables would not share.

    Args:
      function: called with a tensor per input, returns anything.
      devices: one device name per replica.
      sizes: int32 [replicas], rows of each; they may differ, and no row is dropped.
      shared: inputs that every replica gets whole.
      **inputs: tensors whose first axis is split.

    Returns:
      What the function returned, for each replica.

    Source: the recipe known as `make_parallel`, but with rows split by sizes, not evenly.
    """
    replicas = len(devices)
    parts = {
        name: tf.split(tensor, sizes, axis=0, num=replicas) for name, tensor in inputs.items()
    }
    outputs = []
    for replica, device in enumerate(devices):
        with (
            tf.device(device),
            tf1.name_scope(f"replica_{replica}"),
            tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE),
        ):
            mine = {name: split[replica] for name, split in parts.items()}
            outputs.append(function(**mine, **(shared or {})))
    return outputs


def summed_gradients(losses: Sequence[tf.Tensor], variables: Sequence) -> list[tf.Tensor]:
    """Return the gradients of the sum of the replicas' losses, one dense tensor per variable.

    Each tower's part is computed on the tower's device. Sparse gradients are made dense here,
    duplicate rows summed: a norm of them as they are would be another number.

    Args:
      losses: one [] per replica, each its share of the global loss.
      variables: trainable variables.
    """
    total = tf.add_n(list(losses))
    gradients = tf1.gradients(total, variables, colocate_gradients_with_ops=True)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
