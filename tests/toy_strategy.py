"""The strategy that toy_plugin.py registers: a module of its own, since it loads TensorFlow."""

from tf_impl.strategies.towers import Towers, make_parallel


class OneDevice(Towers):
    """Puts all towers on the first device."""

    def _replicate(self, function, devices, sizes, shared, **inputs):
        return make_parallel(function, devices[:1] * len(devices), sizes, shared, **inputs)
