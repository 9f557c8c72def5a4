"""Where one layer of a network hands an activation to the next: recorded, or cut there."""

import paddle


class Taps:
    """Keeps what the layers of one replica compute; see parity/oracle/isolation.py.

    Attributes:
      activations: name -> what a layer computed, time first.
      fed: of an isolated step, name -> what is read in its place, rows first; else empty.
    """

    def __init__(self, fed=None, axes=None):
        """Start with nothing.

        Args:
          fed: for an isolated step, named as in `StepInputs.fed`, tensors with rows first.
          axes: name -> axes of each; see `fed_axes`.
        """
        self.activations, self.fed, self._inner = {}, {}, {}
        for name, array in (fed or {}).items():
            kind, activation = name.split("/", 1)
            if kind == "fed":
                self.fed[activation] = array
            has_time = isinstance(axes[name][1], str)
            self._inner[name] = paddle.transpose(array, [1, 0, 2]) if has_time else array

    def __call__(self, name, activation):
        """Record an activation, and return what the next layer is to read.

        Args:
          activation: [time, batch, ...], or [batch, ...] of a state.

        Returns:
          The activation itself, unless another is fed in its place.
        """
        self.activations[name] = activation
        return self._inner.get(f"fed/{name}", activation)

    def objective(self, loss):
        """Return what the backward pass starts from.

        Where a path was cut, a layer gets the gradient of its output that is fed: that of the
        product of both.

        Args:
          loss: [1].

        Returns:
          [1]; the loss itself, unless the step is isolated.
        """
        for name in self.fed:
            product = self.activations[name] * self._inner[f"fed_gradient/{name}"]
            loss = loss + paddle.sum(product)
        return loss
