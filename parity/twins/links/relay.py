"""Makes hosts, which are network namespaces, and is the switch between them.

`python -m parity.twins.links.relay NAMESPACE=ADDRESS ...` makes each namespace with a TUN
device, prints "ready" or what has failed, and passes packets between them until its input ends.
A line of input is the time for which each packet is held back from then on, in seconds. The
namespaces are removed at the end, which also comes when whoever holds the input is killed.

Some kernels lack `netem`, the queue that delays packets. Packets are passed on with their
offload header, up to 64 KiB at a time, as the network stack of the sender made them: the
receiver's stack sees what a network card with segmentation offload would give it. Nothing is
lost or reordered here. A link's rate is a token bucket in front of the device; see
parity/twins/links/hosts.py.

Source: Linux, Documentation/networking/tuntap.rst, for the ioctls.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

from parity.twins.links.namespaces import inside, remove, run, run_inside

DEVICE = "link0"

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
_HEADER = 10  # bytes of the offload header
_TO = slice(_HEADER + 16, _HEADER + 20)  # the destination in an IPv4 packet
_VERSION = _HEADER  # where the first byte of a packet is
_LARGEST = 1 << 17
_AT_ONCE = 64  # packets that are read from a device before others have their turn
# A flow that rests while its ranks compute would begin anew slowly, and a host's own default
# may be an algorithm that paces itself by delays which a loaded machine makes up.
_SETTINGS = (
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_wmem=4096 16777216 33554432",
    "net.ipv4.tcp_rmem=4096 16777216 33554432",
)
_SLACK, _PR_SET_TIMERSLACK = 1, 29  # nanoseconds by which the kernel may delay a wake-up


def make_host(namespace: str, address: str) -> int:
    """Make a namespace with a TUN device; return the device's file descriptor."""
    run(["ip", "netns", "add", namespace])
    run_inside(namespace, ["sysctl", "-q", *_SETTINGS])
    with inside(namespace):
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    run(["ip", "-n", namespace, "address", "add", f"{address}/24", "dev", DEVICE])
    run(["ip", "-n", namespace, "link", "set", "lo", "up"])
    run(["ip", "-n", namespace, "link", "set", DEVICE, "up"])
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
                delay = float(line.split()[-1])
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
            with suppress(OSError):  # the link has been cut
                os.write(target, packet)


def _ready(
    poll: select.epoll, devices: dict[bytes, int], commands: int, timeout: float | None
) -> list[tuple[int, int]]:
    if timeout is None or timeout > 0.002:
        return poll.poll(None if timeout is None else timeout - 0.001)
    found, _, _ = select.select([*devices.values(), commands], [], [], timeout)
    return [(descriptor, select.EPOLLIN) for descriptor in found]


def main(words: list[str]) -> None:
    """Make the hosts that the words name, relay between them, and remove them."""
    addresses = dict(word.split("=") for word in words)
    try:
        devices = {
            socket.inet_aton(address): make_host(name, address)
            for name, address in addresses.items()
        }
        # else packets would wait while ranks compute, which is not a property of a link
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK, 0, 0, 0)
        _say("ready")
        relay(devices, sys.stdin.fileno())
    except (OSError, subprocess.CalledProcessError) as error:
        _say(str(error))
    finally:
        for name in addresses:
            remove(name)


def _say(line: str) -> None:
    with suppress(BrokenPipeError):  # whoever has started this process has ended
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1:])
