"""Several processes: `tf.distribute.MultiWorkerMirroredStrategy`, with collectives over rings.

Every process has copies of all variables for its own replicas, and runs the same `tf.function`
as `mirrored` does. One collective per step sums the gradients over all processes, and with them
a short vector of losses, so that every process knows the loss of every replica. Of embedding
tables only the rows take part that any process has read, which another collective finds out
while the forward pass goes on.

The engine reads the processes' addresses from the environment variable TF_CONFIG. On CPUs it
has one replica per process; on GPUs, the processes of a host share its GPUs in their order.

Source: Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002, for the ring.
"""

import os

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context as eager_context

from parity.base.errors import UsageError
from parity.base.process import stop_signals_wait
from parity.twins.processes.touched_rows import mark_touched_rows, table_rows
from parity.twins.spec.step_arrays import split_feeds
from tf_impl.devices import replica_devices
from tf_impl.strategies.mirrored import Mirrored, start_eagerly
from tf_impl.strategies.multi_process_base import SeveralProcesses

_HEARTBEAT_MILLISECONDS = 60_000


class MultiWorker(SeveralProcesses, Mirrored):
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
            first = own * group.local_rank
            replica_devices("gpu", first + own)  # refused if there are fewer
            gpus = tf.config.list_physical_devices("GPU")[first : first + own]
            tf.config.set_visible_devices(gpus, "GPU")
        communication = tf.distribute.experimental.CommunicationImplementation
        # it needs no timeout: processes/connected_group.py ends the process if a rank is lost
        if group.size > 1:
            _wait_for_ranks_as_long_as_the_group(group)
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=communication.NCCL if build.device == "gpu" else communication.RING
        )
        try:
            # its server would take SIGTERM for a notice of preemption, and go on
            with stop_signals_wait():
                strategy = tf.distribute.MultiWorkerMirroredStrategy(
                    communication_options=options
                )
        except tf.errors.UnknownError as error:
            if "gRPC server" not in error.message:
                raise
            raise UsageError(
                f"rank {group.rank} cannot listen at its address in TF_CONFIG, "
                f"{os.environ.get('TF_CONFIG')}; allowed: a free port of this host"
            ) from None
        self._log_devices(strategy.extended.worker_devices)
        return strategy

    def _feed_specs(self, masks):
        feeds = super()._feed_specs(masks)
        if masks:  # a training step
            stop = tf.TensorSpec([], self.spec.training.dtype)
            marks = tf.TensorSpec([sum(table_rows(self.spec).values())], tf.int32)
            feeds = [feed | {"stop": stop, "touched": marks} for feed in feeds]
        return feeds

    def _reduce(self, context, gradients, loss, feed):
        """Sum the gradients over all replicas, and with them the losses.

        The losses come back as a vector [replicas + 1]: the loss of each replica, and a last
        element that is zero unless a process was asked to stop.
        """
        # chosen, not multiplied by 0 or 1: a loss that is no number must stay with its replica
        is_own = tf.equal(tf.range(self.replicas), context.replica_id_in_sync_group)
        losses = tf.where(is_own, loss, tf.zeros_like(loss))
        gradients = dict(zip(self._weights, gradients, strict=True))
        rows = self._rows(context, feed["touched"])
        sent = gradients | {name: tf.gather_nd(gradients[name], rows[name]) for name in rows}
        # TensorFlow packs all of them into one collective
        *sums, known = context.all_reduce(
            "SUM", [*sent.values(), tf.concat([losses, feed["stop"][None]], axis=0)]
        )
        sums = dict(zip(sent, sums, strict=True))
        for name, touched in rows.items():
            sums[name] = tf.tensor_scatter_nd_update(gradients[name], touched, sums[name])
        return list(sums.values()), known

    def _rows(self, context, marks):
        """Return table -> the rows that any replica reads, [rows, 1].

        Args:
          context: the replica's tf.distribute.ReplicaContext.
          marks: 1 for each row that this replica reads, int32 [rows of all tables].
        """
        sizes = table_rows(self.spec)
        if not sizes:
            return {}
        marks = context.all_reduce("SUM", tf.identity(marks))  # a feed itself is on no device
        of_tables = tf.split(marks, list(sizes.values()))
        return {name: tf.where(each) for name, each in zip(sizes, of_tables, strict=True)}

    def _run_step(self, inputs, state, learning_rate, record):
        values = super()._run_step(inputs, state, learning_rate, record)
        # every replica has what is summed over all
        values["losses"] = values["losses"][:1]
        return values

    def _own_feeds(self, inputs, state, trains):
        feeds = split_feeds(self.spec, inputs, state, self.replicas)[self._own]
        if trains:
            dtype = np.dtype(self.spec.training.dtype)
            stop = dtype.type(self.build.group.stop_asked != 0)
            marks = mark_touched_rows(self.spec, feeds).astype(np.int32)
            feeds = [feed | {"stop": stop, "touched": marks} for feed in feeds]
        return feeds


def _wait_for_ranks_as_long_as_the_group(group):
    """Let the engine's own watch, of 10 s, end no training whose ranks may be silent for 20 s.

    The engine configures its coordination service only if that has not been done.

    Args:
      group: ProcessGroup.
    """
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=group.size)
    eager_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=_HEARTBEAT_MILLISECONDS,
        coordinated_jobs=[job],
    )
