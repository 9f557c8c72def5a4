"""Runs a framework's scripts without importing the framework each time: a fork per script.

`python -m parity.twins.launch.fork_server FRAMEWORK THREADS SOCKET` imports the framework once
and listens on a Unix socket. A request is one line of JSON:

  stdout, stderr   files that the process writes to
  environment      variables to set
  argv             script and its flags, or
  call             [file, function, arguments]: a function of a module to call
  stdin            optional: file to read from; by default nothing
  terminal         optional: path of a terminal that replaces all three streams
  folder           optional: the working folder
  sources          optional: {path: text} to use instead of what these source files contain

The answer is one line with the process's id and, once it has ended, one line with its exit
status and what the function returned. The process is killed when the server ends.

Only for CPUs: what a GPU's driver sets up does not survive a fork.
"""

import atexit
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeVar

from parity.base.errors import DEFECT_STATUS, SideFailed, UsageError
from parity.base.plugins import load_plugins
from parity.base.process import die_with_parent, stop_signals
from parity.cli.command_line import print_error
from parity.trace.reader import Trace
from parity.twins.launch.edited_source import Edit, EditedSource, edited_texts
from parity.twins.launch.huge_pages import with_huge_pages
from parity.twins.launch.processes import (
    ROOT,
    interpreter,
    option_flags,
    raise_for_status,
    spec_flags,
)
from parity.twins.spec.frameworks import FRAMEWORKS
from parity.twins.spec.spec import Spec

Result = TypeVar("Result")

_POLL = 0.01  # seconds


class Job:
    """A process that a fork server runs.

    Attributes:
      pid: the id of the process.
      folder: the folder of its stdout and stderr, unless the request names other files.
    """

    def __init__(self, path: Path, folder: Path, request: Mapping[str, Any]):
        self.folder = folder
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        self._stream = self._connection.makefile("rw")
        outputs = {name: str(folder / name) for name in ("stdout", "stderr")}
        print(json.dumps({**outputs, **request}), file=self._stream, flush=True)
        self.pid = int(self._answer()["pid"])

    def wait(self) -> tuple[int, Any, str]:
        """Return (exit status, what a called function returned, stderr) once it has ended."""
        status, returned = self.end()
        return status, returned, (self.folder / "stderr").read_text()

    def end(self) -> tuple[int, Any]:
        """Return its exit status and what a called function returned, once it has ended."""
        answer = self._answer()
        self._stream.close()
        self._connection.close()
        return answer["status"], json.loads(answer["returned"]) if answer["returned"] else None

    def _answer(self) -> Mapping[str, Any]:
        """Return the next line that the server says of it.

        Raises:
          SideFailed: if the server is gone.
        """
        line = self._stream.readline()
        if not line:
            raise SideFailed("the fork server was ended by another process", DEFECT_STATUS)
        return dict(json.loads(line))

    def printed(self) -> str:
        """Return what it has written on its stdout."""
        return (self.folder / "stdout").read_text()


class Forked:
    """A process of a fork server with the methods of `subprocess.Popen` that a side needs."""

    def __init__(self, job: Job):
        self._job = job
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal, or None while it runs."""
        if self._status is None:
            try:
                os.kill(self._job.pid, 0)
            except ProcessLookupError:
                self.wait()
        return self._status

    def wait(self) -> int:
        """Return its exit status once it has ended."""
        if self._status is None:
            self._status = self._job.end()[0]
        return self._status

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            os.kill(self._job.pid, signal.SIGKILL)


class ForkServer:
    """Runs a framework's scripts, or functions of a module, each in its own process.

    Args:
      framework: "paddle" or "tensorflow".
      folder: where to put the socket, whose path may have 107 characters, and what the
        processes print; created if missing.
      threads: CPU threads per replica, the same for every process of this server.
      log: file for the server's own output; by default in the folder.
      strategy: a strategy with an environment of its own to run in; None for the framework's.

    Raises:
      UsageError: if the framework's interpreter cannot be started.
    """

    def __init__(
        self,
        framework: str,
        folder: Path,
        threads: int = 1,
        log: Path | None = None,
        strategy: str | None = None,
    ):
        self.framework, self._folder, self._count = framework, folder, 0
        self._threads = threads
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "socket"
        self._socket.unlink(missing_ok=True)
        self._log = log or folder / "server"
        self._program = interpreter(framework, strategy)
        program = [self._program, "-m", "parity.twins.launch.fork_server"]
        try:
            with self._log.open("w") as file:
                self._server = subprocess.Popen(
                    [*program, framework, str(threads), self._socket],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stderr=file,
                    # as Paddle's train.py does
                    env=with_huge_pages(os.environ)
                    if FRAMEWORKS[framework].huge_pages
                    else None,
                )
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot be started: {error.strerror}") from None

    def train(self, *flags: Any, edits: Sequence[Edit] = ()) -> Job:
        """Start `train.py` with some flags.

        Args:
          edits: lines of the project's source to replace in this one process.

        Raises:
          ValueError: if an edit does not fit the code.
        """
        return self._script("train.py", flags, edits)

    def side(self, flags: Sequence[str], log: Path, edits: Sequence[Edit] = ()) -> Forked:
        """Start `train.py` in this process's working folder.

        Args:
          edits: lines of the project's source to replace in this one process.

        Raises:
          ValueError: if an edit does not fit the code.
        """
        said = str(log.resolve())
        given: dict[str, Any] = {
            "stdout": said,
            "stderr": said,
            "folder": str(Path.cwd()),
        }
        return Forked(self._script("train.py", tuple(flags), edits, **given))

    def chat(self, *flags: Any, stdin: Path | None = None, terminal: str | None = None) -> Job:
        """Start `chat.py` with some flags; a terminal replaces all three streams."""
        given: dict[str, Any] = {"terminal": terminal} | (
            {"stdin": str(stdin)} if stdin else {}
        )
        return self._script("chat.py", flags, **given)

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Call a function of a module in a new process; return its result, via JSON.

        Raises:
          SideFailed: if the function raised, with what it printed.
        """
        request = {"call": [inspect.getfile(function), function.__name__, arguments]}
        status, returned, errors = self.start(request).wait()
        if status != 0:
            raise SideFailed(errors, status)
        return returned

    def _script(self, name: str, flags: tuple, edits: Sequence[Edit] = (), **given: Any) -> Job:
        script = FRAMEWORKS[self.framework].path / name
        argv = [str(script), *map(str, flags)]
        if name == "train.py" and not any(word.startswith("--threads") for word in argv):
            argv.append(f"--threads={self._threads}")  # it was loaded with as many
        texts = edited_texts(edits, ROOT)
        sources = {str(ROOT / file): text for file, text in texts.items()}
        return self.start({"argv": argv, "sources": sources, **given})

    def start(self, request: dict[str, Any]) -> Job:
        """Start what a request asks for, as described at the top of this file.

        Raises:
          UsageError, SideFailed: if the framework could not be imported.
        """
        while True:
            status = self._server.poll()
            if status is not None:
                if status not in (0, 1):  # what ends so is no Python, or lacks a package
                    raise_for_status(self.framework, status, self._log)
                last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
                raise UsageError(
                    f"{self._program} ended before it had loaded {self.framework}; allowed "
                    f"in PARITY_{self.framework.upper()}_PYTHON: a Python that has it"
                    + "".join(f"; it said: {line}" for line in last)
                )
            if self._socket.exists():
                break
            if self._count or not self._folder.is_dir():
                raise UsageError(f"{self._folder}: was removed while {self.framework} ran")
            time.sleep(_POLL)
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(exist_ok=True)
        return Job(self._socket, folder, {"environment": {}, **request})

    def stop(self) -> None:
        """Kill the server, and with it the processes that it has started."""
        self._server.kill()
        self._server.wait()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stop()


@contextmanager
def fork_servers(
    frameworks: Iterable[str] = FRAMEWORKS, threads: int = 1, logs: Path | None = None
) -> Iterator[dict[str, ForkServer]]:
    """Run a server for each framework, in a folder that goes with them.

    Args:
      frameworks: their names.
      threads: as for `ForkServer`.
      logs: the folder for their own output; by default it goes as well.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="parity-")))
        yield {
            name: stack.enter_context(
                ForkServer(name, folder / name, threads, logs and logs / f"{name}.log")
            )
            for name in frameworks
        }


@contextmanager
def results_of(
    calls: Iterable[Callable[[], Result]], servers: Iterable[ForkServer], jobs: int
) -> Iterator[Iterator[Result]]:
    """Call functions that train by servers, some at a time; yield their results, in order.

    If the block does not end as it should, the servers are stopped, and with them what they
    train: the threads would wait for that.
    """
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            yield (future.result() for future in futures)
        except BaseException:
            for server in servers:
                server.stop()
            pool.shutdown(cancel_futures=True)
            raise


def record(
    server: ForkServer, spec: Spec, trace: Path, *, edits: Sequence[Edit] = (), **options: Any
) -> Trace:
    """Train one side and return its trace.

    Args:
      server: the fork server of the side's framework.
      spec: the network, its text and its training.
      trace: the folder to record the trace in.
      edits: replacements of lines in the project's source that apply to this run only.
      **options: values of fields of TrainOptions, by name; paths are relative to the working
        folder of this process.

    Raises:
      ValueError: if an edit does not fit the source.
      UsageError, NumericFailure, SideFailed: if the training fails, with the side's message.
    """
    values = {
        name: value.resolve() if isinstance(value, Path) else value
        for name, value in {"trace": trace, **options}.items()
    }
    job = server.train(*spec_flags(spec), *option_flags(values), edits=edits)
    status, _, _ = job.wait()
    raise_for_status(server.framework, status, job.folder / "stderr")
    return Trace(trace)


def serve(framework: str, threads: int, path: str) -> None:
    """Answer requests until killed, or until the process that started this one has ended."""
    asking = stop_signals()
    _ignore(asking)
    try:
        load_plugins()
        FRAMEWORKS[framework].load("engine:load_engine")(threads)
    except UsageError as error:
        sys.exit(print_error(error, debug=False))
    _ignore(asking)  # Paddle has a handler of its own
    for module in ("data.text_corpus", "data.text_batches", "parity.twins.training.start"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # otherwise a collection in a child touches, and so copies, all that is loaded
    parent, server = os.getppid(), os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)  # once it has this name, one can connect
    listener.settimeout(1.0)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listener.close()
            connection.setblocking(True)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            handle(connection, server, asking)
            return
        connection.close()


def _ignore(asking: Iterable[int]) -> None:
    """Leave Ctrl-C, and what ends a process group, to the process that started this one."""
    for number in asking:
        signal.signal(number, signal.SIG_IGN)


def handle(connection: socket.socket, server: int, asking: Iterable[int]) -> None:
    """Answer one request in this process, and run what it asks for in a child.

    Args:
      connection: where the request comes from.
      server: the id of the server's process.
      asking: the signals that ask the child to stop, which this process ignores.
    """
    stream = connection.makefile("rw")
    request = json.loads(stream.readline())
    die_with_parent(server)
    result, result_end = os.pipe()
    between = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(between)
        for number in asking:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, number in (("stdout", 1), ("stderr", 2)):
            # both may be the same file
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if number == 1 else 0)
            os.dup2(os.open(request[name], flags), number)
        stream.close()
        connection.close()
        os.close(result)
        os.dup2(os.open(request.get("stdin", os.devnull), os.O_RDONLY), 0)
        if request.get("terminal"):
            os.setsid()  # makes it the controlling terminal, so that Ctrl-C is delivered
            terminal = os.open(request["terminal"], os.O_RDWR)
            for number in range(3):
                os.dup2(terminal, number)
        _end_by(work, request, result_end)
    os.close(result_end)
    print(json.dumps({"pid": child}), file=stream, flush=True)
    with os.fdopen(result) as file:
        returned = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"status": status, "returned": returned}), file=stream, flush=True)
    os._exit(0)


def _end_by(function: Callable, *arguments: Any) -> NoReturn:
    """Call a function, then end the process like a script but without running destructors.

    A thread of Paddle may hold a lock at the time of the fork. In the child that thread does
    not exist, so a destructor that needs the lock would wait for ever.
    """
    status = 0
    try:
        function(*arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - printed, as Python does for any script
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def work(request: dict[str, Any], result: int) -> None:
    """Run the script, or call the function, that a request names."""
    os.environ.update(request["environment"])
    os.chdir(request.get("folder", "."))
    if "call" in request:
        file, function, arguments = request["call"]
        sys.path.insert(1, str(Path(file).parent))
        module = importlib.import_module(Path(file).stem)
        returned = json.dumps(getattr(module, function)(*arguments))
        os.write(result, returned.encode())
        os.close(result)
        return
    sys.argv = request["argv"]
    os.set_inheritable(result, False)
    sources = request.get("sources", {})
    edited = EditedSource(sources)
    if sources:
        edited.install(("data", "parity", *(each.folder for each in FRAMEWORKS.values())))
    if sys.argv[0] in sources:
        edited.run_script(sys.argv[0])
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
