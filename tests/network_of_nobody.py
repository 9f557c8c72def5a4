"""Makes a private network as a user without rights, and says who reaches whom."""

import ctypes
import os
import socket

from parity.twins.processes.private_network import PrivateNetwork


def reaches(port: int) -> str:
    """Return whether a port of the loopback interface is to be reached here."""
    with socket.socket() as channel:
        return "refused" if channel.connect_ex(("127.0.0.1", port)) else "reached"


def main() -> None:
    """Print whether a port outside and one inside are reached from inside, and the user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as of a user who has logged in
    before = os.getuid()
    network = PrivateNetwork()
    with socket.create_server(("127.0.0.1", 0)) as outside:
        if os.fork():
            os.wait()
            return
        network.enter()
        print(reaches(outside.getsockname()[1]))
        with socket.create_server(("127.0.0.1", 0)) as inside:
            print(reaches(inside.getsockname()[1]))
        print("the same user" if os.getuid() == before else os.getuid(), flush=True)
        os._exit(0)


main()
