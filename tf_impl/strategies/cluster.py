"""The processes of a training with parameter servers, as TensorFlow knows them.

Some processes only serve: they run a `tf.distribute.Server`, and do what others ask of it.
"""

import math

import tensorflow as tf

from parity.base.errors import UsageError
from parity.twins.spec.parameters import parameters

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


class Servers:
    """Which server has which variable: the largest first, each where there are fewest bytes.

    The optimiser's state of a parameter is with it, and all else on the first server.

    Attributes:
      count: the number of servers.

    Args:
      spec: Spec.
      count: the number of servers.
    """

    def __init__(self, spec, count):
        self.count = count
        loads, self._of = [0] * count, {}
        sizes = {p.name: math.prod(p.shape) for p in parameters(spec)}
        for name in sorted(sizes, key=sizes.get, reverse=True):
            self._of[name] = loads.index(min(loads))
            loads[self._of[name]] += sizes[name]

    def of_operation(self, operation):
        """Return the number of the server that gets a variable, given its operation."""
        name = operation.name
        if name.startswith("optimizer/"):
            name = name.split("/", 1)[1].rpartition("/")[0]
        return self._of.get(name, 0)

    def beside_inputs(self, operation):
        """Return the device of an operation: that of its variable, or of its first input.

        So an update runs where its variable is, and no gradient leaves its server.
        """
        if operation.type == "VarHandleOp":
            return f"/job:ps/task:{self.of_operation(operation)}"
        return next((each.device for each in operation.inputs if "/job:ps" in each.device), "")


class Turns:
    """Lets the ranks' gradients into the accumulators in the order of the ranks.

    Each server has a queue for each rank. Whoever finds something in its queue has the turn.

    Attributes:
      begin: the operation that gives the first rank the first turn.

    Args:
      rank: the number of this rank.
      ranks: the number of ranks.
      servers: the number of servers.
    """

    def __init__(self, rank, ranks, servers):
        self._own, self._next, first = [], [], []
        for server in range(servers):
            with tf.device(f"/job:ps/task:{server}"):
                queues = [
                    tf.queue.FIFOQueue(1, tf.bool, [()], shared_name=f"turn_{server}_{each}")
                    for each in range(ranks)
                ]
                first.append(queues[0].enqueue(True))
            self._own.append(queues[rank])
            self._next.append(queues[(rank + 1) % ranks])
        self.begin = tf.group(*first)

    def take(self, gradients):
        """Return gradients, which are on their servers, once it is this rank's turn there."""
        turns = [queue.dequeue() for queue in self._own]
        taken = []
        for gradient in gradients:
            with (
                tf.device(gradient.device),
                tf.control_dependencies([turns[server_of(gradient)]]),
            ):
                taken.append(tf.identity(gradient))
        return taken

    def give(self, gradients):
        """Return an operation that gives the next rank its turn.

        Args:
          gradients: what `take` returned, once the accumulators use it.
        """
        given = []
        for server, queue in enumerate(self._next):
            added = [
                user
                for gradient in gradients
                if server_of(gradient) == server
                for user in gradient.consumers()
            ]
            with tf.control_dependencies(added):
                given.append(queue.enqueue(True))
        return tf.group(*given)


def server_of(tensor):
    """Return the number of the server that a tensor is on."""
    return tf.DeviceSpec.from_string(tensor.device).task
