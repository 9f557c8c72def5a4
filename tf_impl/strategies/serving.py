"""The processes of a training that only serve; this module itself loads no framework."""

from tf_impl.engine import load_engine


def serve(spec, build):
    """Serve the ranks of a training, until this process ends.

    Args:
      spec: Spec, as the ranks have it.
      build: Build, whose group says what this process serves as.

    Raises:
      UsageError: for a device or an address that cannot be used.
      RankLost: if the server ends by itself.
    """
    tf = load_engine(build.threads, build.device)
    # only now: it imports the framework
    from tf_impl.strategies.cluster import start_server

    # differs: it has the variables that the ranks make here, and computes what they ask for
    group = build.group
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=build.threads, allow_soft_placement=True
    )
    start_server(group, group.job, group.index, config).join()
