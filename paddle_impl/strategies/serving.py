"""The processes of a training that only serve; this module itself loads no framework."""

import os

from parity.base.errors import RankLost, UsageError
from parity.base.process import die_with_parent


def check_device(build):
    """Check that a training runs on CPUs, as the engine's servers do.

    Args:
      build: Build.

    Raises:
      UsageError: if it does not.
    """
    if build.device != "cpu":
        raise UsageError(
            f"--device is {build.device!r}; allowed for parameter-server of paddle: cpu"
        )


def serve(spec, build):
    """Serve the ranks of a training, until this process ends.

    Args:
      spec: Spec, as the ranks have it.
      build: Build, whose group says what this process serves as.

    Raises:
      UsageError: for a device or an address that cannot be used.
      RankLost: if the server ends by itself.
    """
    check_device(build)
    group, parent = build.group, os.getpid()
    endpoints = group.served["ps"]
    # differs: a process of its own, which ends with this one: the engine lets no other thread
    # of a server's process run, and this one has to give signs of life
    process = os.fork()
    if process == 0:
        try:
            die_with_parent(parent)
            from paddle_impl.engine import load_engine

            load_engine(build.threads, build.device)
            from paddle_impl.strategies.server_connection import Layout, run_server

            run_server(Layout.of(spec, len(endpoints), group.size), endpoints, group.index)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    raise RankLost(
        f"server {group.index} at {endpoints[group.index]} has ended with status "
        f"{os.waitstatus_to_exitcode(status)}"
    )
