"""Runs a framework's scripts without importing it each time: one import, a fork per script.

`python -m parity.launch.fork_server FRAMEWORK THREADS SOCKET` imports the framework and listens
on a Unix socket. A request is one line of JSON, with "stdout", "stderr", "environment", and
"argv" for a script or "call": [file, function, arguments] for a function of a module; if
wanted, with "stdin", or "terminal", whose path stands for all three, with "folder", where to
run it, with "bound", whether it ends with the server, and with "root", another copy of the
project whose modules the script shall import. The answer is a line with the process's id, then,
when it has ended, one with its status and what the function returned.

Only for CPUs: what the driver of a GPU sets up does not outlive a fork.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from parity.base.allocator import with_huge_pages
from parity.base.errors import SideFailed, UsageError
from parity.cli.command_line import fail
from parity.launch.processes import FOLDERS, ROOT, end_with, interpreter, raise_for

_OWN = ("data", "parity", *FOLDERS.values())  # packages that a copy of the project has, too
_POLL = 0.01  # seconds


class Job:
    """A process of a fork server.

    Attributes:
      pid: of the process.
      folder: holds its stdout and stderr, unless the request said otherwise.
    """

    def __init__(self, path: Path, folder: Path, request: Mapping[str, Any]):
        self.folder = folder
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        self._stream = self._connection.makefile("rw")
        outputs = {name: str(folder / name) for name in ("stdout", "stderr")}
        print(json.dumps({**outputs, **request}), file=self._stream, flush=True)
        self.pid = int(json.loads(self._stream.readline())["pid"])

    def wait(self) -> tuple[int, Any, str]:
        """Return (exit status, what a called function returned, stderr) once it has ended."""
        status, returned = self.end()
        return status, returned, (self.folder / "stderr").read_text()

    def end(self) -> tuple[int, Any]:
        """Return its exit status and what a called function returned, once it has ended."""
        answer = json.loads(self._stream.readline())
        self._stream.close()
        self._connection.close()
        return answer["status"], json.loads(answer["returned"]) if answer["returned"] else None

    def printed(self) -> str:
        """Return what it has written on its stdout."""
        return (self.folder / "stdout").read_text()


class Forked:
    """A side's process of a fork server, to be watched as a `subprocess.Popen` is."""

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
    """Runs a framework's scripts, or functions of a module, each in a process of its own.

    Args:
      framework: "paddle" or "tensorflow".
      folder: gets the socket, whose path may have 107 characters, and what the processes print;
        made if missing.
      threads: CPU threads of each replica, in all that it runs.
      log: file that gets what it prints itself; by default in the folder.

    Raises:
      UsageError: if the framework's interpreter cannot be started.
    """

    def __init__(self, framework: str, folder: Path, threads: int = 1, log: Path | None = None):
        self.framework, self._folder, self._count = framework, folder, 0
        self._threads = threads
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "socket"
        self._socket.unlink(missing_ok=True)
        self._log = log or folder / "server"
        program = [interpreter(framework), "-m", "parity.launch.fork_server"]
        try:
            with self._log.open("w") as file:
                self._server = subprocess.Popen(
                    [*program, framework, str(threads), self._socket],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stderr=file,
                    # as its train.py does
                    env=with_huge_pages(os.environ) if framework == "paddle" else None,
                )
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot be started: {error.strerror}") from None

    def train(self, *flags: Any, root: Path = ROOT) -> Job:
        """Start `train.py` with some flags.

        Args:
          root: of the project, or of a copy of it.
        """
        return self._script("train.py", flags, root)

    def side(self, flags: Sequence[str], log: Path) -> Forked:
        """Start `train.py` where this process runs; it does not outlive the server."""
        said, here = str(log.resolve()), str(Path.cwd())
        given = {"stdout": said, "stderr": said, "folder": here, "bound": True}
        return Forked(self._script("train.py", tuple(flags), ROOT, **given))

    def chat(self, *flags: Any, stdin: Path | None = None, terminal: str | None = None) -> Job:
        """Start `chat.py` with some flags; a terminal is in place of all three streams."""
        given = {"terminal": terminal} | ({"stdin": str(stdin)} if stdin else {})
        return self._script("chat.py", flags, ROOT, **given)

    def call(self, function: Callable, *arguments: Any) -> Any:
        """Return what a function of a module returns; it must be possible as JSON.

        Raises:
          SideFailed: if it raised, with what it printed.
        """
        request = {"call": [inspect.getfile(function), function.__name__, arguments]}
        status, returned, errors = self.start(request).wait()
        if status != 0:
            raise SideFailed(errors, status)
        return returned

    def _script(self, name: str, flags: tuple, root: Path, **given: Any) -> Job:
        script = root.resolve() / FOLDERS[self.framework] / name
        argv = [str(script), *map(str, flags)]
        if name == "train.py" and not any(word.startswith("--threads") for word in argv):
            argv.append(f"--threads={self._threads}")  # the framework is loaded for that many
        return self.start({"argv": argv, "root": str(root.resolve()), **given})

    def start(self, request: dict[str, Any]) -> Job:
        """Start what a request asks for, as described at the top of this file.

        Raises:
          UsageError, SideFailed: if the framework could not be imported.
        """
        while True:
            status = self._server.poll()
            if status is not None:
                raise_for(self.framework, status, self._log)
            if self._socket.exists():
                break
            time.sleep(_POLL)
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(exist_ok=True)
        return Job(self._socket, folder, {"environment": {}, **request})

    def stop(self) -> None:
        """End the server; processes that it started go on, but for those bound to it."""
        self._server.kill()
        self._server.wait()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stop()


def serve(framework: str, threads: int, path: str) -> None:
    """Answer requests until killed, or until the process that started this one is gone."""
    try:
        importlib.import_module(f"{FOLDERS[framework]}.engine").load_engine(threads)
    except UsageError as error:
        sys.exit(fail(error, debug=False))
    for module in ("data.corpus", "data.language_model", "parity.training.loop"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or each process would go through all that is loaded, and so copy it
    parent, server = os.getppid(), os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)  # who sees the socket can connect
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
            handle(connection, server)
            return
        connection.close()


def handle(connection: socket.socket, server: int) -> None:
    """Answer one request, in a process of its own; in the child, run it and return."""
    stream = connection.makefile("rw")
    request = json.loads(stream.readline())
    if request.get("bound"):
        end_with(server)
    result, result_end = os.pipe()
    between = os.getpid()
    child = os.fork()
    if child == 0:
        if request.get("bound"):
            end_with(between)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, number in (("stdout", 1), ("stderr", 2)):
            # the two may be one file
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if number == 1 else 0)
            os.dup2(os.open(request[name], flags), number)
        stream.close()
        connection.close()
        os.close(result)
        os.dup2(os.open(request.get("stdin", os.devnull), os.O_RDONLY), 0)
        if request.get("terminal"):
            os.setsid()  # so that it becomes this process's own, and Ctrl-C reaches it
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
    """Call a function and end the process as a script would, but for libraries' destructors.

    A thread of Paddle's may hold a lock as the process is made. In the new process nobody frees
    it, and a destructor that wants it would wait for ever.
    """
    status = 0
    try:
        function(*arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - printed, as at the end of any script
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def work(request: dict[str, Any], result: int) -> None:
    """Run the script or function; an exception ends the process as it would any other."""
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
    if request["root"] != str(ROOT):
        for name in list(sys.modules):
            if name.split(".")[0] in _OWN:
                del sys.modules[name]
        sys.path[0] = request["root"]
    sys.argv = request["argv"]
    os.set_inheritable(result, False)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
