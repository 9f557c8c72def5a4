"""Makes hosts, which are network namespaces, and is the switch between them.

`python tests/relay.py DELAY RATE NAMESPACE=ADDRESS ...` makes each namespace with a TUN device
that sends RATE bits per second, prints "ready" or what has failed, and passes packets between
them, each after DELAY seconds, until its input ends. The namespaces are removed at the end,
which also comes when whoever holds the input is killed.

Some kernels lack `netem`, the queue that delays packets. Packets are passed on with their
offload header, up to 64 KiB at a time, as the network stack of the sender made them: the
receiver's stack sees what a network card with segmentation offload would give it. Nothing is
lost or reordered here.

Source: Linux, Documentation/networking/tuntap.rst, for the ioctls.
"""

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

from namespaces import DEVICE, inside, remove, run, run_inside

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4
_HEADER = 10  # bytes of the offload header
_TO = slice(_HEADER + 16, _HEADER + 20)  # the destination in an IPv4 packet
_LARGEST = 1 << 17
_AT_ONCE = 64  # packets that are read from a device before others have their turn
_BURST = 131_072  # bytes: a packet before it is divided into segments has up to 65,536


def make_host(namespace: str, address: str, rate: str) -> int:
    """Make a namespace with a TUN device; return the device's file descriptor."""
    run(["ip", "netns", "add", namespace])
    with inside(namespace):
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    run(["ip", "-n", namespace, "address", "add", f"{address}/24", "dev", DEVICE])
    run(["ip", "-n", namespace, "link", "set", "lo", "up"])
    run(["ip", "-n", namespace, "link", "set", DEVICE, "up"])
    shape = f"tbf rate {rate}bit burst {_BURST} latency 400ms"
    run_inside(namespace, f"tc qdisc add dev {DEVICE} root {shape}".split())
    return tun


def relay(devices: dict[bytes, int], delay: float, end: int) -> None:
    """Pass packets between devices until the input ends.

    Args:
      devices: IPv4 address of a host -> the file descriptor of its device.
      delay: seconds for which each packet is held back.
      end: the file descriptor of the input.
    """
    waiting = deque[tuple[float, int, bytes]]()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([*devices.values(), end], [], [], timeout)
        if end in ready:
            return
        for descriptor in ready:
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(descriptor, _LARGEST)
                except BlockingIOError:
                    break
                target = devices.get(packet[_TO])
                if target is not None and packet[_HEADER] >> 4 == 4:
                    waiting.append((time.monotonic() + delay, target, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, target, packet = waiting.popleft()
            with suppress(OSError):  # the link has been cut
                os.write(target, packet)


def main(delay: str, rate: str, *words: str) -> None:
    """Make the hosts that the words name, relay between them, and remove them."""
    addresses = dict(word.split("=") for word in words)
    try:
        devices = {
            socket.inet_aton(address): make_host(name, address, rate)
            for name, address in addresses.items()
        }
        say("ready")
        relay(devices, float(delay), sys.stdin.fileno())
    except (OSError, subprocess.CalledProcessError) as error:
        say(str(error))
    finally:
        for name in addresses:
            remove(name)


def say(line: str) -> None:
    """Print a line, unless whoever has started this process has ended."""
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
