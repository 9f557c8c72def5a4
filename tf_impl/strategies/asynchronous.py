"""Asynchronous training: every replica is a worker, with a copy of the weights of its own.

A worker reads the shared weights, computes the gradient of its own rows with its copy, and
updates the shared weights with the clipped gradient, while the other workers do the same. The
optimiser's state is shared as well. training/asynchronous_run.py runs the workers.
"""

import tensorflow as tf

from parity.twins.spec.step_arrays import join_activations, recorded_activations, split_feeds
from tf_impl.optimizers import apply_update, clip_by_global_norm
from tf_impl.strategies.synchronous_base import Synchronous, _feeds
from tf_impl.strategies.towers import make_parallel, summed_gradients
from tf_impl.weights import from_framework

tf1 = tf.compat.v1


class Asynchronous(Synchronous):
    """Runs each replica as a worker, with weights of its own beside the shared ones."""

    def _build(self):
        # differs: a worker's copy is a set of variables, beside the shared ones in one graph
        self._workers = [
            _Worker(self, number, device) for number, device in enumerate(self._devices)
        ]
        first = self._workers[0]
        self._parameters, self._outputs = first.shared, [first.outputs]
        self._norm, self._clipped, self._update = first.norm, first.clipped, first.update
        self._sizes = tf1.placeholder(tf.int32, [self.replicas], "sizes")
        if self.build.evaluates:
            self._build_evaluation()
        self._keep_variables(first.slots)

    def _replicate(self, function, devices, sizes, shared, **inputs):
        return make_parallel(function, devices, sizes, shared, **inputs)

    def read(self, worker):
        self._run(self._workers[worker].read, {})

    def compute(self, part, state, record=False):
        inputs, own = part.inputs, self._workers[part.worker]
        fetches = {
            "losses": [own.outputs.loss],
            "state": [own.outputs.state],
            "norm": own.norm,
            "keep": own.keep,
        }
        if record:
            activations = {name: [each] for name, each in own.outputs.activations.items()}
            fetches["activations"] = recorded_activations(self.spec, activations, inputs)
            fetches["gradient"], fetches["clipped_gradient"] = own.gradients, own.clipped
            fetches["read"] = own.copies
        (feed,) = split_feeds(self.spec, inputs, state, 1)
        feeds = {own.feeds[name]: array for name, array in feed.items()}
        values = self._run(fetches, feeds | {own.sizes: [inputs.rows]})
        tensors = {}
        if record:
            tensors = join_activations(self.spec, values["activations"], inputs)
            for kind in ("read", "gradient", "clipped_gradient"):
                for variable, value in zip(own.shared, values[kind], strict=True):
                    name = f"{kind}/{variable.op.name}"
                    tensors[name] = from_framework(name, value)
        return self._result(values, tensors)

    def update(self, worker, learning_rate):
        own = self._workers[worker]
        self._run(own.update, {own.learning_rate: learning_rate})


class _Worker:
    """One worker's part of the graph.

    Attributes:
      feeds: name -> placeholder of the worker's rows.
      sizes: the placeholder of their number, int32 [1].
      copies: the values of its own variables, in the order in which the network makes them.
      shared: the shared variables, in the same order.
      read: the operation that copies them to the worker's own variables.
      outputs: the Outputs of its network.
      gradients, clipped: its gradients before and after clipping, one tensor per parameter.
      norm: the global norm of its gradient.
      keep: the operation that computes and keeps the clipped gradient.
      learning_rate: the placeholder that its update reads.
      slots: snapshot name -> the variable that stores it.
      update: the operation that updates the shared variables with the gradient that was kept.
    """

    def __init__(self, strategy, number, device):
        spec, scope = strategy.spec, f"worker_{number}"
        with tf1.variable_scope(scope):
            self.feeds = _feeds(spec, masks=True)
            self.sizes = tf1.placeholder(tf.int32, [1], "sizes")
            (self.outputs,), _ = strategy._towers(self.feeds, [device], self.sizes)
        own = [v for v in tf1.trainable_variables() if v.op.name.startswith(f"{scope}/")]
        self.copies = [variable.read_value() for variable in own]
        self.gradients = summed_gradients([self.outputs.loss[0]], own)
        self.clipped, self.norm = clip_by_global_norm(self.gradients, spec.training.clip_norm)
        names = [variable.op.name.removeprefix(f"{scope}/") for variable in own]
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            self.shared = [
                _variable(name, variable) for name, variable in zip(names, own, strict=True)
            ]
        self.read = tf.group(
            *(
                copy.assign(variable.read_value()).op
                for copy, variable in zip(own, self.shared, strict=True)
            )
        )
        with tf1.variable_scope(scope):
            kept = [
                _variable(f"{name}/gradient", variable, trainable=False)
                for name, variable in zip(names, own, strict=True)
            ]
        self.keep = tf.group(
            *(
                variable.assign(gradient).op
                for variable, gradient in zip(kept, self.clipped, strict=True)
            )
        )
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            self.learning_rate, self.slots, self.update = apply_update(
                spec.training, self.shared, [variable.read_value() for variable in kept]
            )


def _variable(name, like, trainable=True):
    zeros = tf1.zeros_initializer()
    return tf1.get_variable(
        name, like.shape, like.dtype.base_dtype, zeros, trainable=trainable, use_resource=True
    )
