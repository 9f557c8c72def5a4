"""Imports one framework once, and forks a process for every command: seconds saved each time.

`python tests/fork_server.py FRAMEWORK SOCKET` listens on a Unix socket. A request is one line
of JSON, with "stdout", "stderr", "environment", and "argv" for a script or "call": [file,
function, arguments] for a function of a test module; if wanted, with "stdin", or "terminal",
whose path stands for all three. The answer is a line with the process's
id, then, when it has ended, one with its status and what the function returned.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def serve(framework: str, path: str) -> None:
    """Answer requests until killed."""
    sys.path[0] = str(ROOT)
    folder = {"paddle": "paddle_impl", "tensorflow": "tf_impl"}[framework]
    importlib.import_module(f"{folder}.engine").load_engine(threads=1)
    for module in ("data.corpus", "data.language_model", "parity.training"):
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
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


def work(request: dict, result: int) -> None:
    """Run the script or function; an exception ends the process as it would any other."""
    os.environ.update(request["environment"])
    if "call" in request:
        file, function, arguments = request["call"]
        sys.path.insert(1, str(Path(file).parent))
        module = importlib.import_module(Path(file).stem)
        returned = json.dumps(getattr(module, function)(*arguments))
        os.write(result, returned.encode())
        os.close(result)
    else:
        sys.argv = request["argv"]
        os.set_inheritable(result, False)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
