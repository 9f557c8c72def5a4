"""A network for the processes of a training on one machine alone, so that nobody else reaches
the ports of their engines, which ask nobody who they are.

It is a namespace of Linux that has nothing but a loopback interface; see namespaces(7). No root
is needed where the kernel lets users have namespaces of their own.
"""

import ctypes
import fcntl
import os
import socket
import struct
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NoReturn

from parity.base.process import fork
from parity.base.progress import say
from parity.twins.processes.hosts import is_loopback
from parity.twins.processes.launcher_variables import Members

# What anyone who reaches an engine's ports can do.
_HARM = {"tensorflow": "can read and write every file of this user"}
_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # of unshare(2)
_SET_DUMPABLE = 4  # of prctl(2)
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 1  # of netdevice(7)


class PrivateNetwork:
    """A new network, which lasts as long as a process is in it or has this object open.

    Raises:
      OSError: if the kernel does not allow it.
    """

    def __init__(self) -> None:
        # Root needs no user namespace, in which it could not use files of other users.
        kinds = {"net": _NEW_NETWORK}
        if os.geteuid():
            kinds = {"user": _NEW_USER, **kinds}
        made, read_made = _pipe()
        taken, read_taken = _pipe()
        # by a process of one thread, as the kernel demands
        maker = fork()
        if not maker:
            os.close(taken)
            _make(kinds, made, read_taken)
        os.close(made)
        os.close(read_taken)
        try:
            reason = os.read(read_made, 100)
            if reason:
                raise OSError(reason.decode())
            self._opened = [
                (os.open(f"/proc/{maker}/ns/{name}", os.O_RDONLY), kind)
                for name, kind in kinds.items()
            ]
        finally:
            os.close(taken)
            os.close(read_made)
            os.waitpid(maker, 0)

    def enter(self) -> None:
        """Let this process, which must have one thread, be in the network from now on."""
        for opened, kind in self._opened:
            _call("setns", opened, kind)
        # the kernel hides the files in /proc of a process whose rights have changed
        _LIBC.prctl(_SET_DUMPABLE, 1)
        self.close()

    def close(self) -> None:
        """Leave the network to the processes that are in it."""
        for opened, _ in self._opened:
            os.close(opened)
        self._opened = []


def private_network(launcher: str) -> PrivateNetwork | None:
    """Return a new network; None if the kernel does not allow it, or the engine leaves it.

    Args:
      launcher: "paddle", "tensorflow" or "horovod".
    """
    # Horovod connects to the address of the machine's name, which may be outside
    if launcher == "horovod" and not is_loopback(socket.gethostname()):
        return None
    with suppress(OSError):
        return PrivateNetwork()
    return None


def warn_of_ports(launcher: str, members: Members) -> None:
    """Say that the engine's ports are open to whoever reaches them, and what that means.

    Args:
      launcher: "paddle", "tensorflow" or "horovod".
      members: the processes of the training.
    """
    ports, harm = _ports(launcher, members), _HARM.get(launcher, "can change what it computes")
    say(
        f"warning: the engine lets anyone in, at {ports}: whoever reaches it there {harm}; "
        "close its ports to others, or silence this by --i-trust-this-network"
    )


def _ports(launcher: str, members: Members) -> str:
    """Return where an engine listens, in words."""
    served = ", ".join(dict.fromkeys(chain(*members.served.values())))
    if launcher == "tensorflow":
        return ", ".join([*members.endpoints, *([served] if served else [])])
    if launcher == "horovod":
        return "ports that it draws on each host"
    if served:  # brpc, in the trainers too
        return f"{served}, and at each worker the first free port from 8500 on"
    return f"{members.endpoints[0]}, and ports that gloo draws on each host"


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    return write, read


def _make(kinds: dict[str, int], made: int, taken: int) -> NoReturn:
    """Make the namespaces, say so by closing a pipe, and end once they are taken."""
    try:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", sum(kinds.values()))
        if "user" in kinds:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
            answer = fcntl.ioctl(channel, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
            flags = struct.unpack("16sh14x", answer)[1]
            fcntl.ioctl(channel, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _IS_UP))
    except BaseException as error:  # noqa: BLE001 - it must not go on as the process it is a copy of
        os.write(made, str(error).encode()[:100] or b"unknown")
    os.close(made)
    os.read(taken, 1)
    os._exit(0)


def _call(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
