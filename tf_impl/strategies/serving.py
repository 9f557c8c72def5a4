"""What a process does that only serves: as a parameter server, or as a worker of a chief.

It takes no steps by itself. It runs a `tf.distribute.Server`, which has the variables that
others make there, and computes what they ask for.
"""

from tf_impl.engine import load_engine


def serve(spec, build):
    """Do what the ranks ask of this process, until it is ended.

    Args:
      spec: Spec; not needed, because the ranks make the variables here.
      build: Build, whose group says what this process serves as.

    Raises:
      UsageError: if its address cannot be listened at, or this machine lacks a device.
    """
    tf = load_engine(build.threads, build.device)
    # only now: it imports the framework
    from tf_impl.strategies.cluster import start_server

    group = build.group
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=build.threads, allow_soft_placement=True
    )
    start_server(group, group.job, group.index, config).join()
