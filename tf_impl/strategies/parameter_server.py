"""Asynchronous parameter servers: `tf.distribute.ParameterServerStrategy` and its coordinator.

The servers have the weights and the optimiser's state, and every worker is a process of its own
with a copy of the weights. This process, the chief, tells each worker when to copy the weights,
to compute a gradient with its copy, and to update the weights with it. The worker keeps the
gradient, which goes from there to the servers: the chief gets losses alone.

`ClusterCoordinator.schedule` gives a function to whichever worker is free. That is of use for
an evaluation, where any worker may compute any rows. A training step belongs to the worker that
has the copy, so that its order can be given, recorded and replayed: the chief runs it on this
worker by `tf.device`, in a thread for each.

Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
"""

from functools import partial

import numpy as np
import tensorflow as tf

from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.parameters import parameters
from parity.twins.spec.step_arrays import (
    join_activations,
    recorded_activations,
    split_feeds,
)
from parity.twins.training.strategy import definition
from tf_impl.decode import Decoder
from tf_impl.optimizers import clip_by_global_norm, update
from tf_impl.strategies.cluster import cluster_of
from tf_impl.strategies.mirrored import Mirrored, by_name, start_eagerly, to_tensors, traced
from tf_impl.weights import from_framework, to_framework


class ParameterServer(Mirrored):
    """Lets each worker take its own steps on weights that the servers have."""

    def _make(self):
        self._strategy = self._start_engine()
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._variables = self._make_variables()
        self._weights = {
            p.name: self._variables[f"weight/{p.name}"] for p in parameters(self.spec)
        }
        self._lookups = {}
        self._workers = [_Worker(self, number) for number in range(self.replicas)]
        (feed,) = self._feed_specs(masks=False)[:1]
        self._evaluation = traced(self._evaluate_rows, feed)

    def sources(self):
        # all else is traced once a worker calls it
        return {"decode": definition(Decoder)}

    def _start_engine(self):
        start_eagerly(self.build, 1)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster_of(self.build.group)),
            task_type="chief",
            task_id=0,
            rpc_layer="grpc",
        )
        return tf.distribute.ParameterServerStrategy(resolver)

    def _make_variables(self):
        """Return the variables on the servers, snapshot name -> variable.

        The strategy gives weights to the servers in turn. A weight's update runs where it is,
        and needs the optimiser's state there.
        """
        variables = {}
        for name, array in initial_snapshot(self.spec).items():
            make = partial(
                tf.Variable,
                to_framework(name, array),
                trainable=name.startswith("weight/"),
                name=name,
                dtype=self.spec.training.dtype,
            )
            weight = variables.get(f"weight/{name.split('/', 1)[1].rpartition('/')[0]}")
            if weight is None:
                variables[name] = make()
            else:
                with self._strategy.extended.colocate_vars_with(weight):
                    variables[name] = make()
        return variables

    def read(self, worker):
        self._workers[worker].call("read")

    def compute(self, part, state, record=False):
        inputs = part.inputs
        (feed,) = to_tensors(split_feeds(self.spec, inputs, state, 1))
        kind = "record" if record else "compute"
        values = by_name([self._workers[part.worker].call(kind, feed)])
        tensors = {}
        if record:
            activations = by_name(values["activations"])
            activations = recorded_activations(self.spec, activations, inputs)
            tensors = join_activations(self.spec, activations, inputs)
            for kind in ("read", "gradient", "clipped_gradient"):
                for parameter, value in values[kind][0].items():
                    name = f"{kind}/{parameter}"
                    tensors[name] = from_framework(name, value)
        (norm,) = values["norm"]
        return self._result(values | {"norm": norm}, tensors)

    def update(self, worker, learning_rate):
        rate = tf.constant(learning_rate, self.spec.training.dtype)
        self._workers[worker].call("update", rate)

    def evaluate(self, inputs, state):
        feeds = to_tensors(split_feeds(self.spec, inputs, state, self.replicas))
        parts = [self._coordinator.schedule(self._evaluation, (feed,)) for feed in feeds]
        return self._result(by_name([part.fetch() for part in parts]), {})

    def _local_copies(self):
        # the workers' copies are of different versions; nothing else is there twice
        return []

    def _copies(self):
        return {name: [variable.numpy()] for name, variable in self._variables.items()}


class _Worker:
    """One worker's variables and functions, which run in its process.

    Args:
      strategy: the ParameterServer.
      number: the worker's number.
    """

    def __init__(self, strategy, number):
        self._strategy, self._number, spec = strategy, number, strategy.spec
        self._device = f"/job:worker/replica:0/task:{number}"
        kind = "GPU" if strategy.build.device == "gpu" else "CPU"
        with tf.device(f"{self._device}/device:{kind}:0"):
            self._copies, self._kept = (
                {
                    name: tf.Variable(
                        tf.zeros(weight.shape, weight.dtype), name=f"{own}/{name}"
                    )
                    for name, weight in strategy._weights.items()
                }
                for own in ("copy", "gradient")
            )
        (feed,) = strategy._feed_specs(masks=True)[:1]
        rate = tf.TensorSpec([], spec.training.dtype)
        self._functions = {
            "read": traced(self._read),
            "compute": traced(partial(self._compute, False), feed),
            "record": traced(partial(self._compute, True), feed),
            "update": traced(self._update, rate),
        }

    def call(self, name, *arguments):
        """Run a function in the worker's process; return its results once it is done."""
        with tf.device(self._device):
            results = self._functions[name](*arguments)
        return tf.nest.map_structure(np.asarray, results)

    def _read(self):
        for name, weight in self._strategy._weights.items():
            self._copies[name].assign(weight)
        return tf.constant(True)

    def _compute(self, record, feed):
        spec, names = self._strategy.spec, list(self._copies)
        with tf.GradientTape() as tape:
            outputs = self._strategy._network(feed, self._copies)
            objective = outputs.loss[0]
        gradients = tape.gradient(objective, list(self._copies.values()))
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        clipped, norm = clip_by_global_norm(gradients, spec.training.clip_norm)
        for kept, gradient in zip(self._kept.values(), clipped, strict=True):
            kept.assign(gradient)
        values = {"losses": outputs.loss, "state": outputs.state, "norm": norm}
        if record:
            values |= {
                "activations": outputs.activations,
                "gradient": dict(zip(names, gradients, strict=True)),
                "clipped_gradient": dict(zip(names, clipped, strict=True)),
                "read": {name: copy.read_value() for name, copy in self._copies.items()},
            }
        return values

    def _update(self, learning_rate):
        strategy = self._strategy
        gradients = [gradient.read_value() for gradient in self._kept.values()]
        variables = strategy._variables
        update(strategy.spec.training, strategy._weights, gradients, variables, learning_rate)
        return tf.constant(True)
