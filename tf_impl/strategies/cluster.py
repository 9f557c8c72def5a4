"""The cluster of a training with parameter servers, as TensorFlow knows its processes.

Some processes only serve: they run a `tf.distribute.Server`, and do what others ask of it.
"""

import tensorflow as tf

from parity.base.errors import UsageError

tf1 = tf.compat.v1


def cluster_of(group):
    """Return the addresses of all processes by TensorFlow's job: chief or worker, and ps.

    Ranks that compute are its workers. If other processes are the workers, rank 0 is its chief.

    Args:
      group: ProcessGroup.
    """
    ranks = "chief" if "worker" in group.served else "worker"
    jobs = {ranks: group.endpoints} | dict(group.served)
    return {job: list(addresses) for job, addresses in jobs.items()}


def start_server(group, job, index, config):
    """Start TensorFlow's server of this process, and return it.

    Args:
      group: ProcessGroup.
      job: the process's job in the cluster.
      index: its number within the job.
      config: tf1.ConfigProto.

    Raises:
      UsageError: if its address cannot be listened at.
    """
    cluster = cluster_of(group)
    try:
        return tf.distribute.Server(cluster, job_name=job, task_index=index, config=config)
    except tf.errors.UnknownError as error:
        if "gRPC server" not in error.message:
            raise
        raise UsageError(
            f"{job} {index} cannot listen at its address, {cluster[job][index]}; allowed: a "
            "free port of this host"
        ) from None
