"""A switch between network namespaces that holds every packet back for a given time.

`python -m parity.links.relay NAMESPACE=DEVICE=ADDRESS ...` makes a TUN device in each
namespace, prints a line once all are there, and passes packets between them until its input
ends. A line of input is the new delay of each packet, in seconds.

Some kernels lack `netem`, the queue that delays packets. Packets are passed on with their
offload header, up to 64 KiB at a time, as the network stack of the sender made them: the
receiver's stack sees what a network card with segmentation offload would give it. Nothing is
lost or reordered here. A link's rate is a token bucket in front of the device; see
parity/links/hosts.py.

Source: Linux, Documentation/networking/tuntap.rst, for the ioctls.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress

from parity.links.namespaces import inside

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
_HEADER = 10  # bytes of the offload header
_TO = slice(_HEADER + 16, _HEADER + 20)  # the destination in an IPv4 packet
_VERSION = _HEADER  # where the first byte of a packet is
_LARGEST = 1 << 17
_AT_ONCE = 64  # packets that are read from a device before others have their turn
_SLACK, _PR_SET_TIMERSLACK = 1, 29  # nanoseconds by which the kernel may delay a wake-up


def open_device(namespace: str, device: str) -> int:
    """Make a TUN device in a namespace; return its file descriptor."""
    with inside(namespace):
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    return tun


def relay(devices: dict[bytes, int], commands: int) -> None:
    """Pass packets between devices until the input ends.

    Args:
      devices: IPv4 address of a host -> the file descriptor of its device.
      commands: the file descriptor of the input.
    """
    delay, waiting = 0.0, deque[tuple[float, int, bytes]]()
    poll = select.epoll()
    for descriptor in (*devices.values(), commands):
        poll.register(descriptor, select.EPOLLIN)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        # epoll counts in milliseconds: below that, sleep only as long as nothing is read
        for descriptor, _ in _ready(poll, devices, commands, timeout):
            if descriptor == commands:
                line = os.read(commands, 64)
                if not line:
                    return
                delay = float(line)
                continue
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(descriptor, _LARGEST)
                except BlockingIOError:
                    break
                target = devices.get(packet[_TO])
                if target is not None and packet[_VERSION] >> 4 == 4:
                    waiting.append((time.monotonic() + delay, target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            os.write(target, packet)


def _ready(
    poll: select.epoll, devices: dict[bytes, int], commands: int, timeout: float | None
) -> list[tuple[int, int]]:
    if timeout is None or timeout > 0.002:
        return poll.poll(None if timeout is None else timeout - 0.001)
    found, _, _ = select.select([*devices.values(), commands], [], [], timeout)
    return [(descriptor, select.EPOLLIN) for descriptor in found]


def main(words: list[str]) -> None:
    """Make the devices that the words name, and relay between them."""
    # else packets would wait while ranks compute, which is not a property of a link
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK, 0, 0, 0)
    devices = {}
    for word in words:
        namespace, device, address = word.split("=")
        devices[socket.inet_aton(address)] = open_device(namespace, device)
    print("ready", flush=True)
    relay(devices, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
