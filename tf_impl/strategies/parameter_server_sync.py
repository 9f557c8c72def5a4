"""Synchronous parameter servers: `SyncReplicasOptimizer` over `tf.distribute.Server`.

The servers have the variables, and every rank has a graph of its own, which reads them. In each
step a rank sends its gradients to accumulators on the servers. Once they have those of all
ranks, the first rank, the chief, lets the servers sum, clip and update, and gives every rank a
token for the next step.

An accumulator adds gradients as they arrive, and the order of a sum of three or more changes
its last bits. Here the ranks take turns: each sends its gradients as soon as they are computed,
and they wait on their server until those of the rank before are added. The turns are queues on
the servers, one for each rank, so that taking turns costs no message between processes. A
second run then has the same bits.

Source: Chen et al. 2016, arXiv:1604.00981, for synchronous updates without backup workers.
"""

from contextlib import contextmanager

import tensorflow as tf

from parity.twins.spec.initial import initial_snapshot
from tf_impl.devices import replica_devices
from tf_impl.kernels import use_kernels
from tf_impl.optimizers import apply_update, clip_by_global_norm
from tf_impl.strategies.cluster import Servers, Turns, start_server
from tf_impl.strategies.multi_process_base import TowersOfProcesses

tf1 = tf.compat.v1

# what a step fetches on the chief alone, which updates the variables for all ranks
_OF_CHIEF = ("update", "gradient", "clipped_gradient")


class ParameterServerSync(TowersOfProcesses):
    """Runs the replicas of a rank on variables that all ranks share, on the servers."""

    def _make(self):
        build, self._group = self.build, self.build.group
        group = self._group
        self._count = count = self._own.stop - self._own.start
        self._devices = replica_devices(build.device, count)
        self._servers = Servers(self.spec, len(group.served["ps"]))
        server = start_server(group, "worker", group.rank, self._config(count))
        self._graph = tf.Graph()
        setter = tf1.train.replica_device_setter(
            ps_tasks=self._servers.count,
            worker_device=f"/job:worker/task:{group.rank}",
            ps_strategy=self._servers.of_operation,
        )
        with self._graph.as_default(), tf1.device(setter), use_kernels(build.kernels):
            self._build()
        self._session = tf1.Session(server.target, self._graph, self._config(count))
        self._graph.finalize()
        self._start()

    def _config(self, devices):
        config = super()._config(devices)
        # the ranks exchange everything by the servers
        own = f"/job:worker/task:{self._group.rank}"
        config.device_filters.extend(["/job:ps", own])
        return config

    def _build(self):
        super()._build()
        self._initial = tf1.global_variables_initializer()

    def _combine(self, losses, parameters, shares):
        # those that are sparse stay so until they are on their server
        return tf1.gradients(tf.add_n(losses), parameters, colocate_gradients_with_ops=True)

    def _build_update(self, losses):
        """Send gradients and losses to the servers, and wait for the update of all ranks.

        Args:
          losses: one [] per tower of this rank; the gradients wait for all of them.

        Returns:
          Snapshot name -> the variable on a server that stores the optimiser's state.
        """
        group, dtype = self._group, self.spec.training.dtype
        with tf1.variable_scope("report"):
            self._reports = [
                _variable(f"of_{rank}", [self._count + 1], dtype) for rank in range(group.size)
            ]
            self._joined = _variable("of_all", [self.replicas + 2], dtype)
        own = tf.concat([*self._losses, self._stop], axis=0)
        reported = self._reports[group.rank].assign(own)
        # the weights are read before they change, even by what no gradient depends on
        with tf.control_dependencies([reported.op, *losses]):
            sent = [
                _dense(gradient, variable)
                for gradient, variable in zip(self._gradients, self._parameters, strict=True)
            ]
        turns = Turns(group.rank, group.size, self._servers.count)
        sent = turns.take(sent)
        with _without_deprecation():
            optimizer = tf1.train.SyncReplicasOptimizer(_Update(self._update_all), group.size)
            token = optimizer.apply_gradients(
                list(zip(sent, self._parameters, strict=True)),
                tf1.train.get_or_create_global_step(),
            )
        optimizer.ready_for_local_init_op.mark_used()  # the group says it, see `_start`
        passed = turns.give(sent)
        with tf.control_dependencies([token, passed]):
            report = self._joined.read_value()
        # of all ranks, as every rank reads them
        self._losses, self._norm = [report[:-1]], report[-1]
        # the chief runs it with its own step: a queue runner's thread would hide its errors
        (self._update,) = optimizer.get_chief_queue_runner().enqueue_ops
        self._first = tf.group(optimizer.chief_init_op, turns.begin)
        self._begin = optimizer.local_step_init_op
        return self._slots

    def _update_all(self, means):
        """Update the variables on the servers, and join what the ranks report.

        Args:
          means: the mean of all ranks' gradients for each parameter, on its server.
        """
        with tf1.device(self._servers.beside_inputs):
            # the losses are shares of the global loss: their gradients are to be summed
            self._gradients = [mean * self._group.size for mean in means]
            self._clipped, norm = clip_by_global_norm(
                self._gradients, self.spec.training.clip_norm
            )
            self._learning_rate, self._slots, update = apply_update(
                self.spec.training, self._parameters, self._clipped
            )
            # all ranks have reported once all gradients are there
            with tf.control_dependencies([norm]):
                reports = [report.read_value() for report in self._reports]
            stops = tf.add_n([report[-1:] for report in reports])
            joined = tf.concat(
                [*(report[:-1] for report in reports), stops, norm[None]], axis=0
            )
            return tf.group(update, self._joined.assign(joined))

    def _start(self):
        """Initialise the servers' variables; nobody has to look for when that is done."""
        group = self._group
        if group.rank == 0:
            self._session.run(self._initial)
            self._session.run(self._first)
        group.barrier()
        if group.rank > 0:
            self._session.run(self._begin)
        self.load(initial_snapshot(self.spec))

    def load(self, snapshot):
        self._group.barrier()  # until nobody reads the variables
        if self._group.rank == 0:
            super().load(snapshot)
        self._group.barrier()

    def _run(self, fetches, feeds):
        if self._group.rank > 0:
            fetches = {name: each for name, each in fetches.items() if name not in _OF_CHIEF}
        return super()._run(fetches, feeds)


class _Update(tf1.train.Optimizer):
    """The update that the chief makes of the ranks' mean gradients; it may clip them."""

    def __init__(self, update):
        super().__init__(use_locking=False, name="update")
        self._update = update

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        update = self._update([mean for mean, _ in grads_and_vars])
        with tf.control_dependencies([update]):
            return global_step.assign_add(1).op


def _dense(gradient, variable):
    """Return a dense gradient on its variable's server.

    A sparse one travels as it is. It must be dense there: an accumulator divides a sparse mean
    row by row, by the number of ranks that had the row.
    """
    with tf.device(variable.device):
        return tf.identity(tf.convert_to_tensor(gradient))


def _variable(name, shape, dtype):
    zeros = tf1.zeros_initializer()
    return tf1.get_variable(name, shape, dtype, zeros, trainable=False, use_resource=True)


@contextmanager
def _without_deprecation():
    """Keep TensorFlow from advising against what it still has."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)
