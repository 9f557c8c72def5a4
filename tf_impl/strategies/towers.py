"""Towers: one graph that has the network once per replica, all with the same variables.

Each tower computes its own rows on its own device. AUTO_REUSE shares the variables, and one
update uses the gradient of the sum of the towers' losses.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_impl.strategies.synchronous_base import Synchronous

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
    """Call a function once per replica, with that replica's rows and on its device.

    Variables made with `get_variable` are made by the first tower and shared by the others,
    because the scope is entered with AUTO_REUSE. Layers that keep their variables themselves
    would not share them.

    Args:
      function: builds part of the graph from one tensor per input, and returns anything.
      devices: one device name per replica.
      sizes: the number of rows of each replica, int32 [replicas]; no row is dropped.
      shared: inputs that every replica gets whole.
      **inputs: tensors whose first axis is split.

    Returns:
      A list with the function's result for each replica.

    Source: the recipe known as `make_parallel`, which splits the rows evenly.
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
            replica_inputs = {name: split[replica] for name, split in parts.items()}
            outputs.append(function(**replica_inputs, **(shared or {})))
    return outputs


def summed_gradients(losses: Sequence[tf.Tensor], variables: Sequence) -> list[tf.Tensor]:
    """Return the gradients of the sum of the replicas' losses, one dense tensor per variable.

    Each tower's part is computed on the tower's device. Sparse gradients are made dense, which
    sums duplicate rows: the norm of a sparse gradient would be a different number.

    Args:
      losses: one [] per replica, each its share of the global loss.
      variables: trainable variables.
    """
    total = tf.add_n(list(losses))
    gradients = tf1.gradients(total, variables, colocate_gradients_with_ops=True)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
