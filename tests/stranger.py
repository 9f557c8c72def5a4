"""Connects to ports as a user without rights: `stranger.py ADDRESS`, and a port in each line of
its input. Says what no engine expects, and keeps the connections; prints how many it got, and
why not the last one that it did not get.
"""

import encodings.idna  # noqa: F401 - for names, and not to be read as the other user
import os
import socket
import struct
import sys

NOBODY = 65534
SAID = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    struct.pack(">cQ", b"H", 12) + b'{"rank": 1}\n',  # a rank's greeting, without the secret
    struct.pack("<Q", 1 << 40) + bytes(4000),
    b"\xff" * 4000,
    *[b""] * 50,
)


def main() -> None:
    """Connect to each port."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    kept = []
    for line in sys.stdin:
        before, why = len(kept), ""
        for said in SAID:
            try:
                channel = socket.create_connection((sys.argv[1], int(line)), timeout=1)
                kept.append(channel)
                channel.sendall(said)
            except OSError as error:
                why = str(error)
        print(line.strip(), len(kept) - before, why, flush=True)


main()
