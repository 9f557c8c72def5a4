"""Runs a framework's scripts without importing it each time: one import, a fork per script.

`python -m parity.fork_server FRAMEWORK SOCKET` imports the framework and listens on a Unix
socket. A request is one line of JSON, with "stdout", "stderr", "environment", and "argv" for a
script or "call": [file, function, arguments] for a function of a module; if wanted, with
"stdin", or "terminal", whose path stands for all three, and with "root", another copy of the
project whose modules the script shall import. The answer is a line with the process's id, then,
when it has ended, one with its status and what the function returned.
"""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.errors import SideFailed
from parity.launch import FOLDERS, ROOT, interpreter

_OWN = ("data", "parity", *FOLDERS.values())  # packages that a copy of the project has, too
_POLL = 0.01  # seconds


class Job:
    """A process of a fork server.

    Attributes:
      pid: of the process.
      folder: holds its stdout and stderr.
    """

    def __init__(self, path: Path, folder: Path, request: Mapping[str, Any]):
        self.folder = folder
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        self._stream = self._connection.makefile("rw")
        outputs = {name: str(folder / name) for name in ("stdout", "stderr")}
        print(json.dumps({**request, **outputs}), file=self._stream, flush=True)
        self.pid = int(json.loads(self._stream.readline())["pid"])

    def wait(self) -> tuple[int, Any, str]:
        """Return (exit status, what a called function returned, stderr) once it has ended."""
        answer = json.loads(self._stream.readline())
        self._stream.close()
        self._connection.close()
        returned = json.loads(answer["returned"]) if answer["returned"] else None
        return answer["status"], returned, (self.folder / "stderr").read_text()

    def printed(self) -> str:
        """Return what it has written on its stdout."""
        return (self.folder / "stdout").read_text()


class ForkServer:
    """Runs a framework's scripts, or functions of a module, each in a process of its own.

    Args:
      framework: "paddle" or "tensorflow".
      folder: gets the socket, whose path may have 107 characters, and what the processes print;
        made if missing.
    """

    def __init__(self, framework: str, folder: Path):
        self.framework, self._folder, self._count = framework, folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "socket"
        self._socket.unlink(missing_ok=True)
        self._errors = (folder / "server").open("w+")
        self._server = subprocess.Popen(
            [interpreter(framework), "-m", "parity.fork_server", framework, self._socket],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=self._errors,
        )

    def train(self, *flags: Any, root: Path = ROOT) -> Job:
        """Start `train.py` with some flags.

        Args:
          root: of the project, or of a copy of it.
        """
        return self._script("train.py", flags, root)

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
        return self.start({"argv": argv, "root": str(root.resolve()), **given})

    def start(self, request: dict[str, Any]) -> Job:
        """Start what a request asks for, as described at the top of this file.

        Raises:
          SideFailed: if the framework could not be imported.
        """
        while not self._socket.exists():
            if self._server.poll() is not None:
                self._errors.seek(0)
                said = self._errors.read().strip()
                raise SideFailed(
                    f"{self.framework} cannot be started: {said}", self._server.returncode
                )
            time.sleep(_POLL)
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(exist_ok=True)
        return Job(self._socket, folder, {"environment": {}, **request})

    def stop(self) -> None:
        """End the server; processes that it started go on."""
        self._server.kill()
        self._server.wait()
        self._errors.close()

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stop()


def serve(framework: str, path: str) -> None:
    """Answer requests until killed, or until the process that started this one is gone."""
    importlib.import_module(f"{FOLDERS[framework]}.engine").load_engine(threads=1)
    for module in ("data.corpus", "data.language_model", "parity.training"):
        importlib.import_module(module)
    parent = os.getppid()
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
            handle(connection)
            return
        connection.close()


def handle(connection: socket.socket) -> None:
    """Answer one request, in a process of its own; in the child, run it and return."""
    stream = connection.makefile("rw")
    request = json.loads(stream.readline())
    result, result_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        stream.close()
        connection.close()
        os.close(result)
        os.dup2(os.open(request.get("stdin", os.devnull), os.O_RDONLY), 0)
        if request.get("terminal"):
            os.setsid()  # so that it becomes this process's own, and Ctrl-C reaches it
            terminal = os.open(request["terminal"], os.O_RDWR)
            for number in range(3):
                os.dup2(terminal, number)
        work(request, result_end)
        return
    os.close(result_end)
    print(json.dumps({"pid": child}), file=stream, flush=True)
    with os.fdopen(result) as file:
        returned = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"status": status, "returned": returned}), file=stream, flush=True)
    os._exit(0)


def work(request: dict[str, Any], result: int) -> None:
    """Run the script or function; an exception ends the process as it would any other."""
    os.environ.update(request["environment"])
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
    serve(*sys.argv[1:])
