"""Taps: the points where one layer passes an activation to the next, to record or to cut."""

import tensorflow as tf


class Taps:
    """Records the activations of one replica, and replaces them in an isolated step.

    See parity/twins/oracle/isolated_step.py.

    Attributes:
      activations: name -> the activation that a layer computed, time first.
      fed: in an isolated step, name -> the values, rows first, that the next layer reads
        instead of the activation; empty in any other step.
    """

    def __init__(self, fed=None, axes=None):
        """Start without any recorded activation.

        Args:
          fed: for an isolated step, tensors with rows first, named as in `StepInputs.fed`.
          axes: name -> the tensor's axes; see `fed_axes`.
        """
        self.activations, self.fed, self._inner = {}, {}, {}
        for name, array in (fed or {}).items():
            kind, activation = name.split("/", 1)
            if kind == "fed":
                self.fed[activation] = array
            has_time = isinstance(axes[name][1], str)
            self._inner[name] = tf.transpose(array, [1, 0, 2]) if has_time else array

    def __call__(self, name, activation):
        """Record an activation, and return the tensor that the next layer reads.

        Args:
          name: the activation's name.
          activation: [time, batch, ...], or [batch, ...] for a state.

        Returns:
          The activation itself, or the tensor that is fed instead of it.
        """
        self.activations[name] = activation
        return self._inner.get(f"fed/{name}", activation)

    def objective(self, loss):
        """Return the scalar that the backward pass differentiates.

        Where the network is cut, no gradient comes from the layers above. Adding the product of
        the layer's output and the gradient that is fed makes the layer receive that gradient.

        Args:
          loss: the replica's share of the loss, [1].

        Returns:
          [1]; the loss itself, unless the step is isolated.
        """
        for name in self.fed:
            product = self.activations[name] * self._inner[f"fed_gradient/{name}"]
            loss = loss + tf.reduce_sum(product)
        return loss
