"""Trains a network in Keras, written as its users would: layers and MirroredStrategy.

`python -m parity.twins.peers.keras_peer` takes the flags of `train.py`. It is a single process;
several replicas are logical devices under MirroredStrategy, with `--threads` threads each.

Source: tensorflow.org/guide/distributed_training, "Use tf.distribute.Strategy with custom
training loops".
"""

import os
from collections.abc import Mapping
from typing import Any, ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf

from parity.base.errors import UsageError
from parity.twins.launch.peer_strategies import KERAS
from parity.twins.peers.command import timing_command
from parity.twins.spec.initial import initial_snapshot
from parity.twins.spec.networks import NETWORKS
from parity.twins.spec.spec import Spec
from parity.twins.spec.step_arrays import StepInputs, StepResult, split_feeds
from parity.twins.training.meter import peak_memory


class Trainer:
    """Trains a network on some replicas.

    Attributes:
      spec: the network, its text and its training.
      replicas: the number of replicas.
      framework: the peer's name.
      versions: package -> version.

    Raises:
      UsageError: for a network without a builder here, for dropout, and for Adam.
    """

    framework = "keras"
    versions: ClassVar = {"keras": keras.__version__, "tensorflow": tf.__version__}

    def __init__(self, spec: Spec, replicas: int, threads: int):
        """Build the network and the function that trains it."""
        seen = spec.model.keep, spec.training.optimizer
        if seen != (1, "sgd"):
            # Keras's Adam adds epsilon before the bias correction
            raise UsageError("keras: keep {:g}, {}; allowed: 1, sgd".format(*seen))
        self.spec, self.replicas = spec, replicas
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(replicas)
        keras.config.set_floatx(spec.training.dtype)
        if replicas > 1:
            (processor,) = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration()] * replicas
            tf.config.set_logical_device_configuration(processor, logical)
            devices = [f"/cpu:{k}" for k in range(replicas)]
            self._strategy = tf.distribute.MirroredStrategy(devices)
        else:
            self._strategy = tf.distribute.get_strategy()
        with self._strategy.scope():
            self._network = NETWORKS[spec.network].builder("keras")(spec.model)
            canonical = self._network.canonical
            for name, value in initial_snapshot(spec).items():
                kind, _, path = name.partition("/")
                if kind == "weight":
                    canonical[path].assign(value)
            self._optimizer = keras.optimizers.SGD(spec.training.learning_rate)
            self._optimizer.build(self._network.trainable_variables)
            # the gradients are summed and clipped before the optimiser gets them
            self._optimizer._all_reduce_sum_gradients = list
        self._train = tf.function(self._step_on_all_replicas)

    def step(
        self,
        inputs: StepInputs,
        state: Mapping[str, np.ndarray],
        learning_rate: float,
    ) -> StepResult:
        """Train on one global batch."""
        self._optimizer.learning_rate.assign(learning_rate)
        feeds = split_feeds(self.spec, inputs, state, self.replicas)

        def replica_feed(context: Any) -> dict[str, tf.Tensor]:
            feed = feeds[context.replica_id_in_sync_group]
            return {name: tf.constant(array) for name, array in feed.items()}

        feed = self._strategy.experimental_distribute_values_from_function(replica_feed)
        losses, states = self._train(feed)
        by_replica = self._strategy.experimental_local_results
        parts = {name: by_replica(value) for name, value in states.items()}
        joined = {
            name: np.concatenate([p.numpy() for p in each]) for name, each in parts.items()
        }
        losses = np.concatenate([loss.numpy() for loss in by_replica(losses)])
        return StepResult(losses, joined, 0.0, {})

    def _step_on_all_replicas(self, feed: Any) -> Any:
        return self._strategy.run(self._step_on_one_replica, args=(feed,))

    def _step_on_one_replica(
        self, feed: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        network = self._network
        with tf.GradientTape() as tape:
            logits, state = network(feed)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(feed["targets"], logits)
            real = tf.sequence_mask(feed["lengths"], tf.shape(losses)[1], losses.dtype)
            loss = tf.reduce_sum(losses * real) * feed["scale"]
        gradients = tape.gradient(loss, network.trainable_variables)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        gradients, _ = tf.clip_by_global_norm(gradients, self.spec.training.clip_norm)
        self._optimizer.apply(gradients)
        return loss, state

    def peak_memory(self) -> list[int]:
        """Return the peak memory of the process, in bytes."""
        return [peak_memory()]


if __name__ == "__main__":
    timing_command(KERAS, Trainer)
