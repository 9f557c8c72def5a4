"""Mirrored variables: `tf.distribute.MirroredStrategy` in the style of TensorFlow 2.

Every replica has its own copy of all variables. A `tf.function` runs the same step on each of
them with its own rows (`strategy.run`), the gradients are summed over the replicas
(`all_reduce`), and every replica clips the sum and updates its own copy, so that all copies
stay equal.

TensorFlow must run eagerly for that, which `load_engine` switches off for the strategies that
build graphs. This module switches it on again, so no graph may have been built before.
"""

import traceback
from functools import partial

import numpy as np
import tensorflow as tf

from parity.base.machine import replicas_at_once
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.parameters import parameters
from parity.twins.spec.step_arrays import Taps, recorded_activations, split_feeds
from tf_impl.devices import replica_devices
from tf_impl.eager_profiler import profile_functions
from tf_impl.kernels import use_kernels
from tf_impl.networks import Inputs
from tf_impl.optimizers import clip_by_global_norm, update
from tf_impl.strategies.synchronous_base import Synchronous, feed_types
from tf_impl.weights import from_framework, to_framework

tf1 = tf.compat.v1


class Mirrored(Synchronous):
    """Runs one function on all replicas, each with its own copy of the variables."""

    def _make(self):
        spec = self.spec
        self._strategy = self._start_engine()
        with self._strategy.scope():
            self._variables = {
                name: tf.Variable(
                    to_framework(name, array),
                    trainable=name.startswith("weight/"),
                    name=name,
                    dtype=spec.training.dtype,
                )
                for name, array in initial_snapshot(spec).items()
            }
        self._weights = {p.name: self._variables[f"weight/{p.name}"] for p in parameters(spec)}
        self._lookups = {}  # canonical name -> the calls by which a layer asked for it first
        rate = tf.TensorSpec([], spec.training.dtype)
        feeds = self._feed_specs(masks=True)
        self._train = {
            record: traced(partial(self._train_replicas, record), feeds, rate)
            for record in (False, True)
        }
        feeds = self._feed_specs(masks=False)
        self._evaluation = traced(self._evaluate_replicas, feeds)

    def _start_engine(self):
        """Let TensorFlow run eagerly; return the `tf.distribute.Strategy` with all replicas."""
        build = self.build
        devices = replica_devices(build.device, build.replicas)
        self._log_devices(devices)
        start_eagerly(build, build.replicas)
        # logical CPUs share their memory: there is no ring to be gained by
        reduction = tf.distribute.ReductionToOneDevice() if build.device == "cpu" else None
        return tf.distribute.MirroredStrategy(devices, reduction)

    def _log_devices(self, devices):
        if self.build.log_device_placement:
            for replica, device in enumerate(devices, self._own.start):
                print(f"replica {replica}: {device}", flush=True)

    def _feed_specs(self, masks):
        types = feed_types(self.spec, masks)
        feed = {name: tf.TensorSpec(shape, dtype) for name, (dtype, shape) in types.items()}
        return [feed] * (self._own.stop - self._own.start)

    def _train_replicas(self, record, feeds, learning_rate):
        """Take a training step on every replica; return for each of them name -> value."""
        weights = self._weights

        def train(feed):
            # the scopes are the phases of a profile
            with tf.name_scope("forward"), tf.GradientTape() as tape:
                outputs = self._network(feed)
                objective = outputs.loss[0]
            with tf.name_scope("backward"):
                gradients = tape.gradient(objective, list(weights.values()))
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            with tf.name_scope("all_reduce"):
                context = tf.distribute.get_replica_context()
                gradients, losses = self._reduce(context, gradients, outputs.loss, feed)
            with tf.name_scope("update"):
                clipped, norm = clip_by_global_norm(gradients, self.spec.training.clip_norm)
                updated = update(
                    self.spec.training, weights, clipped, self._variables, learning_rate
                )
            # what the last tracing made, for `sources`
            self._outputs, self._clipped = [outputs], clipped
            self._norm, self._update = norm, updated
            values = {"losses": losses, "state": outputs.state, "norm": norm}
            if record:
                values |= {
                    "activations": outputs.activations,
                    "gradient": dict(zip(weights, gradients, strict=True)),
                    "clipped_gradient": dict(zip(weights, clipped, strict=True)),
                }
            return values

        return self._run_on_replicas(train, feeds)

    def _reduce(self, context, gradients, loss, feed):
        """Sum the gradients over all replicas.

        Args:
          context: the replica's tf.distribute.ReplicaContext.
          gradients: the replica's gradients, one tensor per parameter.
          loss: the replica's loss, [1].
          feed: the replica's feed, name -> tensor.

        Returns:
          The sums, and the losses that are known to this replica: here its own, [1].
        """
        return context.all_reduce("SUM", gradients), loss

    def _evaluate_replicas(self, feeds):
        return self._run_on_replicas(self._evaluate_rows, feeds)

    def _evaluate_rows(self, feed):
        outputs = self._network(feed)
        return {"losses": outputs.loss, "state": outputs.state}

    def _run_on_replicas(self, function, feeds):
        """Call a function on every replica with its feed; return a list of the results."""
        strategy = self._strategy
        per_replica = strategy.experimental_distribute_values_from_function(
            lambda context: feeds[context.replica_id_in_sync_group - self._own.start]
        )
        results = strategy.run(function, args=(per_replica,))

        def of_replica(replica):
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[replica], results
            )

        return [of_replica(replica) for replica in range(len(feeds))]

    def _network(self, feed, weights=None):
        """Build the network on one replica; return its Outputs.

        Args:
          feed: name -> tensor.
          weights: canonical name -> variable; None for those that the replicas share.
        """
        spec, network = self.spec, NETWORKS[self.spec.network]
        weights = self._weights if weights is None else weights

        def look_up(getter, name, *arguments, **named):
            """Return the variable of a canonical name, where a layer would make one."""
            self._lookups.setdefault(name, traceback.extract_stack())
            return weights[name]

        inputs = Inputs(
            batch={name: feed[name] for name in network.batch},
            state={name: feed[name] for name in network.state(spec.model)},
            masks={
                name: feed[f"mask/{name}"]
                for name in network.masks(spec.model)
                if f"mask/{name}" in feed
            },
            scale=feed["scale"],
            tap=Taps(),
        )
        # here, because each replica has a thread, and a thread starts without these contexts
        with (
            use_kernels(self.build.kernels),
            tf1.variable_scope(tf1.get_variable_scope(), custom_getter=look_up),
        ):
            return network.builder(self.framework)(spec.model, inputs)

    def load(self, snapshot):
        for name, array in snapshot.items():
            self._variables[name].assign(to_framework(name, array))

    def snapshot(self):
        return {
            name: from_framework(name, copies[0]) for name, copies in self._copies().items()
        }

    def _local_copies(self):
        copies, own = self._copies(), range(self._own.stop - self._own.start)
        return [{name: each[i] for name, each in copies.items()} for i in own]

    def _copies(self):
        """Return the values of all copies of each variable, name -> list."""
        return {
            name: [copy.numpy() for copy in self._strategy.experimental_local_results(variable)]
            for name, variable in self._variables.items()
        }

    def _run_step(self, inputs, state, learning_rate, record):
        rate = tf.constant(learning_rate, self.spec.training.dtype)
        feeds = self._own_feeds(inputs, state, trains=True)
        values = by_name(self._train[record](to_tensors(feeds), rate))
        # all replicas have the same gradient once it is reduced
        for name in ("norm", "gradient", "clipped_gradient") if record else ("norm",):
            values[name] = values[name][0]
        if record:
            activations = by_name(values["activations"])
            values["activations"] = recorded_activations(self.spec, activations, inputs)
        return values

    def _run_evaluation(self, inputs, state):
        feeds = self._own_feeds(inputs, state, trains=False)
        return by_name(self._evaluation(to_tensors(feeds)))

    def _own_feeds(self, inputs, state, trains):
        """Return what the replicas of this process are fed in a step or an evaluation."""
        return split_feeds(self.spec, inputs, state, self.replicas)

    def sources(self):
        self._train[True].get_concrete_function()  # traced now, not in the first step
        return super().sources()

    def _parameter_calls(self):
        return self._lookups

    def profile(self):
        return profile_functions()


def start_eagerly(build, replicas):
    """Let TensorFlow run eagerly, with a logical CPU and a share of the threads per replica.

    Args:
      build: Build.
      replicas: the number of replicas in this process.

    Raises:
      ValueError: if a graph was built before, or fewer logical CPUs were made before.
    """
    tf1.enable_eager_execution()
    count = replicas if build.device == "cpu" else 1
    (cpu,) = tf.config.list_physical_devices("CPU")
    made = tf.config.get_logical_device_configuration(cpu)
    if made is None:
        logical = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, logical)
        tf.config.threading.set_intra_op_parallelism_threads(build.threads)
        at_once = replicas_at_once(replicas, build.device)
        tf.config.threading.set_inter_op_parallelism_threads(at_once)
        # as in a session of the other strategies
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    elif len(made) < count:
        raise ValueError(f"{len(made)} logical CPUs were made before; needed: {count}")


def traced(function, *signature):
    """Return a tf.function of a function, with the given signature."""
    # the networks write their loops as operations: there is no Python to be translated
    return tf.function(function, input_signature=signature, autograph=False)


def to_tensors(feeds):
    return [{name: tf.constant(array) for name, array in feed.items()} for feed in feeds]


def by_name(replicas):
    """Return a list of dictionaries as name -> list of arrays, or of dictionaries of them."""
    return {
        name: [tf.nest.map_structure(np.asarray, replica[name]) for replica in replicas]
        for name in (replicas[0] if replicas else ())
    }
