"""Horovod: towers in several processes, whose gradients Horovod sums by a ring of gloo.

The six steps that a training takes to Horovod are all here, marked with their numbers. Two of
them differ from the tutorials, where every process has a batch of its own, all gradients are
averaged, and the learning rate grows with the number of processes. Here the processes share a
global batch, and a loss is already divided by the tokens of that whole batch: gradients are
summed (`hvd.Sum`), not averaged, and the learning rate stays what it is.

Horovod 0.28.1, its last release, does not compile against the TensorFlow of the other
strategies: it has an environment of its own, which `make horovod` makes.

Source: Sergeev & Del Balso 2018, arXiv:1802.05799.
"""

import os
from dataclasses import replace

import numpy as np
import tensorflow as tf

from parity.base.errors import UsageError
from parity.base.interfaces import interface_of
from parity.processes.joining import (
    distances_of_replicas,
    gather_parts,
    gather_state,
    state_of_own_rows,
)
from tf_impl.engine import without_greeting
from tf_impl.strategies.own_rows import feed_own_rows
from tf_impl.strategies.towers import Towers

try:
    with without_greeting():
        import horovod.tensorflow as hvd
        from horovod.runner.http.http_server import RendezvousServer
except ImportError as error:
    raise UsageError(
        f"horovod cannot be imported ({error}); allowed: .venv-horovod/bin/python in place of "
        "this interpreter, which `make horovod` installs"
    ) from None

tf1 = tf.compat.v1


class Horovod(Towers):
    """Builds the towers of this process's replicas; Horovod sums over the processes."""

    def __init__(self, spec, build, entry):
        """Meet the other processes, build the graph and load the initial weights.

        Args:
          spec: Spec.
          build: Build.
          entry: StrategyEntry.

        Raises:
          UsageError: if this machine lacks a device.
        """
        _find_each_other(build.group)
        hvd.init()  # 1: before anything else of Horovod
        # some processes may be slow to get here, and Horovod would give them up
        build.group.barrier()
        # this TensorFlow logs one line at its first session, whatever the level of its log
        with without_greeting():
            super().__init__(spec, build, entry)

    def _config(self, devices):
        config = super()._config(devices)
        if self.build.device == "gpu":  # 2: the processes of a host share its GPUs
            first = hvd.local_rank() * devices
            own = map(str, range(first, first + devices))
            config.gpu_options.visible_device_list = ",".join(own)
        return config

    def _combine(self, losses, parameters, shares):
        # 3: the optimiser's gradients are summed over all processes. The update is not its
        # own: gradients are clipped first. All are one group, else those that come together
        # would be summed together, in an order of additions that depends on the threads.
        optimizer = hvd.DistributedOptimizer(
            tf1.train.GradientDescentOptimizer(learning_rate=1.0),
            op=hvd.Sum,
            # a norm of rows that are not summed yet would be another number
            sparse_as_dense=True,
            groups=1,
        )
        pairs = optimizer.compute_gradients(
            tf.add_n(losses), parameters, colocate_gradients_with_ops=True
        )
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        # the losses of all replicas, and whether a process was asked to stop
        self._stop = tf1.placeholder(self.spec.training.dtype, [1], "stop")
        others = [self._own.start, self.replicas - self._own.stop]
        before, after = (tf.zeros([count], self._stop.dtype) for count in others)
        report = tf.concat([before, *self._losses, after, self._stop], axis=0)
        with tf.control_dependencies(gradients):  # nor may it come into their group
            self._losses = [hvd.allreduce(report, op=hvd.Sum)]
        return gradients

    def _keep_variables(self, slots):
        super()._keep_variables(slots)
        self._broadcast = hvd.broadcast_global_variables(0)

    def load(self, snapshot):
        """Set weights and optimiser state in every process to what the first one is given.

        Args:
          snapshot: name -> array in canonical layout; only its shapes count in the others.
        """
        if self.build.group.rank > 0:
            # what is not broadcast is not to be right by chance
            snapshot = {name: np.zeros_like(array) for name, array in snapshot.items()}
        super().load(snapshot)
        self._session.run(self._broadcast)  # 4: weights begin, and go on, as the first one's

    # 5, saving, is rank 0's in the training loop; 6, the learning rate, is not scaled

    def replica_distances(self):
        """Return each replica's greatest absolute distance from replica 0, name -> [replicas].

        Unless every distance is exactly zero, the replicas have drifted apart.
        """
        # the towers of one process share one copy
        copies = [self.snapshot()] * (self._own.stop - self._own.start)
        return distances_of_replicas(self.build.group, copies)

    def step(self, inputs, state, learning_rate, record=False):
        """Train on one global batch, of which this process computes the rows of its replicas.

        Args:
          inputs: StepInputs.
          state: name -> recurrent state before the batch, [batch, layers, hidden]; only the
            rows of this process are read.
          learning_rate: the learning rate of this step.
          record: whether to return all tensors that a trace records.

        Returns:
          StepResult with the losses of all replicas, and the state of this process's rows, with
          zeros for others. With `record`, the first process returns the state of all rows, and
          all tensors; the others return none.
        """
        group = self.build.group
        result = super().step(inputs, state, learning_rate, record)
        *losses, stops = result.losses
        group.stop_agreed = bool(stops > 0)
        state = self._own_state(result, inputs)
        if record:
            state = gather_state(group, state, self.replicas) or state
        return replace(result, losses=np.array(losses), state=state)

    def evaluate(self, inputs, state):
        """Compute the loss of one global batch, without dropout and without an update.

        Args:
          inputs: StepInputs without masks.
          state: name -> recurrent state before the batch, [batch, layers, hidden]; only the
            rows of this process are read.

        Returns:
          StepResult with a gradient norm of 0, and zeros for the state of other processes'
          rows.
        """
        result = super().evaluate(inputs, state)
        losses = [
            each["losses"] for each in self.build.group.all_gather({"losses": result.losses})
        ]
        state = self._own_state(result, inputs)
        return replace(result, losses=np.concatenate(losses), state=state)

    def _fill(self, placeholders, inputs, state):
        filled, sizes = feed_own_rows(self, placeholders, inputs, state)
        stop = [self.build.group.stop_asked != 0]
        return filled | {self._sizes: sizes, self._stop: stop}

    def _own_state(self, result, inputs):
        parts = {name: [array] for name, array in result.state.items()}
        return state_of_own_rows(self.build.group, parts, inputs.rows, self.replicas)

    def _record(self, inputs, values):
        """Return the tensors of a trace on the first process, and none on the others."""
        group, distances = self.build.group, self.replica_distances()
        gradients = values["activation_gradients"]
        fed = {name: [each[name] for each in gradients] for name in gradients[0]}
        activations = gather_parts(group, values["activations"])
        fed = gather_parts(group, fed)
        if group.rank > 0:
            return {}
        of_replicas = [
            {name: each[i] for name, each in fed.items()} for i in range(self.replicas)
        ]
        gathered = {"activations": activations, "activation_gradients": of_replicas}
        tensors = super()._record(inputs, values | gathered)
        return tensors | {f"replicas/{name}": each for name, each in distances.items()}


def _find_each_other(group):
    """Start Horovod's rendezvous server on rank 0, unless `horovodrun` has started one."""
    # what it would say of a process that is gone is the error of the next step, too
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
    server, port = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
    if group.size == 1 or server in os.environ:
        return
    host, at = os.environ["HOROVOD_HOSTNAME"], None
    if group.rank == 0:
        at = {"host": np.array(host), "port": np.array(RendezvousServer().start())}
    at = group.broadcast(at)
    os.environ[server], os.environ[port] = str(at["host"]), str(at["port"])
    # by itself gloo may listen on the loopback interface, where no other host is
    os.environ.setdefault("HOROVOD_GLOO_IFACE", interface_of(host))
