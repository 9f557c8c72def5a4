"""How much memory there is, and what an allocation that failed had asked for."""

import math
import re
import resource
from pathlib import Path

import numpy as np

# What NumPy, Paddle and TensorFlow say of an allocation that failed. TensorFlow's message names
# the tensor instead of its size.
_SIZES = (
    re.compile(r"Unable to allocate (?P<number>[\d.]+) (?P<unit>[KMGTPE]?i?B|bytes)"),
    re.compile(r"alloc memory of (?P<number>\d+) size"),
    re.compile(r"Cannot allocate (?P<number>[\d.]+)(?P<unit>[KMGTPE]?B) memory"),
)
_TENSOR = re.compile(
    r"allocating tensor with shape\[(?P<shape>[\d,]*)\] and type (?P<type>\w+)"
)
_TYPES = {"half": 2, "float": 4, "double": 8, "int32": 4, "int64": 8, "bool": 1}
_UNITS = "BKMGTPE"

# What may end a training that asks for more than there is; the numbers it depends on.
_ALLOWED = (
    "allowed: a smaller --hidden-size, --embedding-size, --num-layers, --vocabulary-size or "
    "--batch-size, fewer --replicas, or more memory"
)


def memory_limit() -> tuple[int, str]:
    """Return how many bytes this process may still ask for at most, and what sets that limit.

    Only `ulimit -v` is about this process alone; of the others all of it counts as free.
    """
    limits = []
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        limits.append((max(0, allowed - _address_space()), "ulimit -v"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append((int(Path("/sys/fs/cgroup", name).read_text()), "the control group"))
        except (OSError, ValueError):  # none, or "max"
            continue
    found = re.findall(r"^(?:MemTotal|SwapTotal): +(\d+) kB", _meminfo(), re.MULTILINE)
    if found:
        limits.append((1024 * sum(map(int, found)), "the machine"))
    return min(limits, default=(2**63, "the machine"))


def too_large(what: str, needed: int, limit: tuple[int, str]) -> str:
    """Return the message about something that can never fit."""
    return (
        f"out of memory: {what} {in_words(needed)}, and {limit[1]} leaves "
        f"{in_words(limit[0])}; {_ALLOWED}"
    )


def out_of_memory(error: BaseException) -> str | None:
    """Return the message about an allocation that failed; None for any other error.

    Both frameworks have an error of their own for it, beside Python's.
    """
    kind, message = type(error).__name__, str(error)
    of_tensorflow = kind == "InternalError" and "Could not allocate" in message
    if not (
        isinstance(error, MemoryError) or kind == "ResourceExhaustedError" or of_tensorflow
    ):
        return None
    size = asked_for(message)
    of_size = "" if size is None else f" for {in_words(size)} more"
    return f"out of memory: there was no room{of_size}; {_ALLOWED}"


def require_memory(size: int) -> None:
    """Check that so many bytes could be had now, before a library that ends the process asks.

    Raises:
      MemoryError: if they could not; NumPy says how many they were.
    """
    np.empty(size, np.uint8)


def asked_for(message: str) -> int | None:
    """Return the number of bytes that an allocator says it could not get, if it says so."""
    tensor = _TENSOR.search(message)
    if tensor:
        shape = [int(each) for each in tensor["shape"].split(",") if each]
        return math.prod(shape) * _TYPES.get(tensor["type"], 4)
    for pattern in _SIZES:
        found = pattern.search(message)
        if found:
            unit = found.groupdict().get("unit") or "B"
            power = 0 if unit == "bytes" else _UNITS.index(unit[0])
            return int(float(found["number"]) * float(1 << (10 * power)))
    return None


def in_words(size: int) -> str:
    """Return a number of bytes in GiB, or in MiB below one: "57.6 GiB"."""
    if size < 2**30:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**30:,.1f} GiB"


def _address_space() -> int:
    """Return how many bytes of addresses this process has."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _meminfo() -> str:
    try:
        return Path("/proc/meminfo").read_text()
    except OSError:
        return ""
