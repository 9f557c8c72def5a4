"""What the processes of a training agree on: their options, and when to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from threading import Event, Thread

from parity.base.plugins import load_object
from parity.base.process import request_once, stop_signals
from parity.twins.cli.options import TrainOptions
from parity.twins.processes.group import ProcessGroup
from parity.twins.spec.spec import Spec
from parity.twins.training.strategy import Build
from parity.twins.training.text_source import TextSource

# Options that must be equal on all ranks, besides the spec and the strategy's settings.
_COMMON_OPTIONS = (
    *("strategy", "kernels", "device", "steps", "checkpoint_every", "evaluate"),
    *("evaluate_only", "newest", "decode", "beam", "length_penalty"),
)
# Read from what is installed: to import a framework would be too early.
_PACKAGES = (
    *("paddlepaddle", "paddlepaddle-gpu", "tensorflow", "tensorflow-cpu", "horovod", "numpy"),
    "training-parity",
)


def facts_of_run(spec: Spec, text: TextSource, options: TrainOptions) -> dict[str, str]:
    """Return what must be the same in all processes of a training, by name.

    Args:
      spec: the network and its training.
      text: the text to train on.
      options: the command line, with the number of all replicas.
    """
    common = {name: getattr(options, name) for name in _COMMON_OPTIONS}
    values = {
        **installed_versions(),
        "text": text.content_hash[:12],
        "network": spec.network,
        **spec.values(),
        **common,
        **options.settings.given,
        "replicas": options.replicas,
        "trace": options.trace is not None,
        "profile": options.profile is not None,
    }
    return {name: str(value) for name, value in values.items()}


def serve(spec: Spec, build: Build) -> None:
    """Serve the ranks of a training until rank 0 leaves the group.

    Servers ignore SIGINT, SIGTERM and SIGHUP: the ranks need them until they have stopped.

    Args:
      spec: the network and its training.
      build: how the ranks build their strategy, and the group.
    """
    group = build.group
    failed: list[BaseException] = []
    ended = Event()

    def run() -> None:
        try:
            load_object(group.serve)(spec, build)
        except BaseException as error:  # noqa: BLE001 - it is raised again by the main thread
            failed.append(error)
            ended.set()

    def wait() -> None:
        group.await_end()
        ended.set()

    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    # both wait in code that no signal reaches
    for target in (run, wait):
        Thread(target=target, daemon=True).start()
    ended.wait()
    if failed:
        raise failed[0]


def installed_versions() -> dict[str, str]:
    """Return package -> version of what trains and is installed, without importing it."""
    found = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


class StopRequest:
    """A request to stop the run.

    Attributes:
      signal: the number of the signal that asked the run to stop; 0 if none has.
    """

    signal: int = 0


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Let a signal only request a stop; see `request_once` for further ones.

    Once a stop is requested the process is about to end: the signals keep this meaning then.
    """
    request = StopRequest()

    def ask(number: int) -> None:
        request.signal = number

    handle = request_once(ask)
    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield request
    finally:
        if not request.signal:
            for number, handler in before.items():
                signal.signal(number, handler)


def agreed_signal(group: ProcessGroup, asked: int) -> int:
    """Return the signal that asks the training to stop, or 0 as long as not all know of it.

    Args:
      group: the processes of the training.
      asked: the signal that this process has received, or 0.
    """
    if group.size == 1:
        return asked or group.stop_asked
    group.stop_asked = asked  # the next step tells the others
    return (asked or signal.SIGTERM) if group.stop_agreed else 0
