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

import numpy as np
import tensorflow as tf

from parity.base.errors import UsageError
from parity.twins.processes.interfaces import interface_of, require_reachable_name
from tf_impl.engine import without_greeting
from tf_impl.strategies.multi_process_base import TowersOfProcesses

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


class Horovod(TowersOfProcesses):
    """Builds the towers of this process's replicas; Horovod sums over the processes."""

    def __init__(self, spec, build, entry):
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
        if self.build.group.rank > 0:
            # what is not broadcast is not to be right by chance
            snapshot = {name: np.zeros_like(array) for name, array in snapshot.items()}
        super().load(snapshot)
        self._session.run(self._broadcast)  # 4: weights begin, and go on, as the first one's

    # 5, saving, is rank 0's in the training loop; 6, the learning rate, is not scaled

    def _local_copies(self):
        # the towers of one process share one copy
        return [self.snapshot()] * (self._own.stop - self._own.start)


def _find_each_other(group):
    """Start Horovod's rendezvous server on rank 0, unless `horovodrun` has started one."""
    # what it would say of a process that is gone is the error of the next step, too
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
    server, port = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
    # Not all of Horovod's connections heed the interface that it is told: those of its set of
    # all processes are made to the address that the name of the machine has.
    if int(os.environ.get("HOROVOD_CROSS_SIZE", 1)) > 1:
        require_reachable_name()
    if group.size == 1 or server in os.environ:
        return
    host, at = os.environ["HOROVOD_HOSTNAME"], None
    if group.rank == 0:
        at = {"host": np.array(host), "port": np.array(RendezvousServer().start())}
    at = group.broadcast(at)
    os.environ[server], os.environ[port] = str(at["host"]), str(at["port"])
    # by itself gloo may listen on the loopback interface, where no other host is
    os.environ.setdefault("HOROVOD_GLOO_IFACE", interface_of(host))
