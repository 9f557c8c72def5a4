"""Several processes: `tf.distribute.MultiWorkerMirroredStrategy`, with collectives over rings.

Every process has copies of all variables for its own replicas, and runs the same `tf.function`
as `mirrored` does. One collective per step sums the gradients over all processes, and with them
a short vector of losses, so that every process knows the loss of every replica.

The engine reads the processes' addresses from the environment variable TF_CONFIG. On CPUs it
has one replica per process; on GPUs, the processes of a host share its GPUs in their order.

Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, for the ring.
"""

import os

import numpy as np
import tensorflow as tf

from parity.base.errors import UsageError
from parity.processes.joining import (
    distances_of_replicas,
    gather_parts,
    gather_state,
    state_of_own_rows,
)
from parity.spec.step_arrays import StepResult, recorded_activations, split_feeds
from tf_impl.devices import replica_devices
from tf_impl.strategies.mirrored import Mirrored, by_name, start_eagerly, to_tensors


class MultiWorker(Mirrored):
    """Runs one function on the replicas of every process, each with its own copy of all."""

    def _start_engine(self):
        build, group = self.build, self.build.group
        own = self._own.stop - self._own.start
        if build.device == "cpu" and own > 1:
            raise UsageError(
                f"--replicas is {build.replicas} and --processes is {group.size}; allowed on "
                "CPUs: one replica per process, because MultiWorkerMirroredStrategy uses one "
                "CPU of each process"
            )
        start_eagerly(build, own)
        if build.device == "gpu":
            first = own * _processes_before(group)
            replica_devices("gpu", first + own)  # refused if there are fewer
            gpus = tf.config.list_physical_devices("GPU")[first : first + own]
            tf.config.set_visible_devices(gpus, "GPU")
        communication = tf.distribute.experimental.CommunicationImplementation
        # it needs no timeout: parity/processes/ranks.py ends the process if a rank is lost
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=communication.NCCL if build.device == "gpu" else communication.RING
        )
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        except tf.errors.UnknownError as error:
            if "gRPC server" not in error.message:
                raise
            raise UsageError(
                f"rank {group.rank} cannot listen at its address in TF_CONFIG, "
                f"{os.environ.get('TF_CONFIG')}; allowed: a free port of this host"
            ) from None
        self._log_devices(strategy.extended.worker_devices)
        return strategy

    def _feed_specs(self, masks, isolate):
        feeds = super()._feed_specs(masks, isolate)
        if masks:  # a training step
            stop = {"stop": tf.TensorSpec([], self.spec.training.dtype)}
            feeds = [feed | stop for feed in feeds]
        return feeds

    def _reduce(self, context, gradients, loss, feed):
        """Sum the gradients over all replicas, and with them the losses.

        Args:
          context: the replica's tf.distribute.ReplicaContext.
          gradients: the replica's gradients, one tensor per parameter.
          loss: the replica's loss, [1].
          feed: the replica's feed, name -> tensor.

        Returns:
          The sums, and a vector [replicas + 1]: the loss of each replica, and a last element
          that is zero unless a process was asked to stop.
        """
        # chosen, not multiplied by 0 or 1: a loss that is no number must stay with its replica
        is_own = tf.equal(tf.range(self.replicas), context.replica_id_in_sync_group)
        losses = tf.where(is_own, loss, tf.zeros_like(loss))
        # TensorFlow packs all of them into one collective
        *gradients, summed = context.all_reduce(
            "SUM", [*gradients, tf.concat([losses, feed["stop"][None]], axis=0)]
        )
        return gradients, summed

    def step(self, inputs, state, learning_rate, record=False):
        """Train on one global batch, of which this process computes the rows of its replicas.

        Args:
          inputs: StepInputs, of this process's rows or of all.
          state: name -> recurrent state before the batch, [batch, layers, hidden]; only the
            rows of this process are read.
          learning_rate: the learning rate of this step.
          record: whether to return all tensors that a trace records.

        Returns:
          StepResult with the losses of all replicas, and the state of this process's rows, with
          zeros for others. With `record`, the first process returns the state of all rows, and
          all tensors; the others return none.
        """
        group, dtype = self.build.group, np.dtype(self.spec.training.dtype)
        stop = {"stop": dtype.type(group.stop_asked != 0)}
        feeds = [feed | stop for feed in self._own_feeds(inputs, state)]
        rate = tf.constant(learning_rate, dtype)
        values = by_name(self._train[record](to_tensors(feeds), rate))
        *losses, stops = values["losses"][0]
        group.stop_agreed = bool(stops > 0)
        state = self._own_state(values, inputs)
        tensors = {}
        if record:
            state = gather_state(group, state, self.replicas) or state
            tensors = self._record(inputs, values)
        return StepResult(np.array(losses), state, float(values["norm"][0]), tensors)

    def evaluate(self, inputs, state):
        """Compute the loss of one global batch, without dropout and without an update.

        Args:
          inputs: StepInputs without masks, of this process's rows or of all.
          state: name -> recurrent state before the batch, [batch, layers, hidden]; only the
            rows of this process are read.

        Returns:
          StepResult with a gradient norm of 0, and zeros for the state of other processes'
          rows.
        """
        values = by_name(self._evaluation(to_tensors(self._own_feeds(inputs, state))))
        own = {"losses": np.concatenate(values["losses"])}
        losses = [each["losses"] for each in self.build.group.all_gather(own)]
        return StepResult(np.concatenate(losses), self._own_state(values, inputs), 0.0, {})

    def replica_distances(self):
        """Return each replica's greatest absolute distance from replica 0, name -> [replicas].

        Unless every distance is exactly zero, the replicas have drifted apart.
        """
        copies = self._copies()
        own = range(self._own.stop - self._own.start)
        of_replicas = [{name: each[i] for name, each in copies.items()} for i in own]
        return distances_of_replicas(self.build.group, of_replicas)

    def _own_feeds(self, inputs, state):
        return split_feeds(self.spec, inputs, state, self.replicas)[self._own]

    def _own_state(self, values, inputs):
        parts = by_name(values["state"])
        return state_of_own_rows(self.build.group, parts, inputs.rows, self.replicas)

    def _record(self, inputs, values):
        """Return the tensors of a trace on the first process, and none on the others."""
        activations = [
            recorded_activations(self.spec, each, inputs) for each in values["activations"]
        ]
        gathered = {
            kind: gather_parts(self.build.group, by_name(parts))
            for kind, parts in (
                ("activations", activations),
                ("activation_gradients", values["activation_gradients"]),
            )
        }
        if self.build.group.rank > 0:
            self.replica_distances()  # in which every process takes part
            return {}
        of_replicas = {
            kind: [
                {name: each[i] for name, each in parts.items()} for i in range(self.replicas)
            ]
            for kind, parts in gathered.items()
        }
        return super()._record(inputs, values | of_replicas)


def _processes_before(group):
    """Return how many processes of lower rank run on this process's host."""
    hosts = [endpoint.rpartition(":")[0] for endpoint in group.endpoints]
    return hosts[: group.rank].count(hosts[group.rank]) if hosts else 0
