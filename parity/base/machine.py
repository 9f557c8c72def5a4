"""This machine: its processor, its cores, and what an allocation asked for."""

import datetime
import math
import os
import platform
import re
import resource
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """Return the name of the processor, or its architecture where Linux does not tell it."""
    lines = _cpuinfo()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, names), platform.machine())


def processor_facts() -> list[str]:
    """Return what tells processors apart, as lines of Linux's /proc/cpuinfo; sorted."""
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    return sorted({line for line in _cpuinfo() if line.partition(":")[0].strip() in names})


def _cpuinfo() -> list[str]:
    try:
        return _CPUINFO.read_text().splitlines()
    except OSError:
        return []


def user_cache() -> Path:
    """Return the user's folder for what was measured on this machine; it may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(home) / "training-parity"


def measured_here() -> dict[str, Any]:
    """Return the date (UTC), processor and cores, for a file of measured figures."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": usable_cores(),
    }


_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, within its cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # not on Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max": no quota
        pass
    return cores


def replicas_at_once(replicas: int, device: str) -> int:
    """Return how many of the replicas should run at a time: on CPUs, one per core.

    With more of them, replicas take turns on each core and evict each other's data from its
    cache: eight replicas on two cores took 2 % longer in Paddle, and in TensorFlow 4 % longer
    with 8 % more memory.
    """
    return min(replicas, usable_cores()) if device == "cpu" else replicas


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

# What Python and the system say where a thread or a process cannot be started.
_FULL = ("can't start new thread", "Resource temporarily unavailable")


def out_of_memory(error: BaseException) -> str | None:
    """Return the message about memory or a thread that there was no room for; None for others.

    Both frameworks have an error of their own for it, beside Python's.
    """
    kind, message = type(error).__name__, str(error)
    if kind in ("RuntimeError", "BlockingIOError") and any(each in message for each in _FULL):
        return (
            f"no room for another thread or process ({message}); allowed: fewer --threads or "
            "--replicas, or more room by `ulimit -u` and `ulimit -v`"
        )
    of_tensorflow = kind == "InternalError" and "Could not allocate" in message
    # all that Paddle says of it, in a thread of its own
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    of_paddle = message == "std::exception" and not unlimited
    if not (
        isinstance(error, MemoryError)
        or kind == "ResourceExhaustedError"
        or of_tensorflow
        or of_paddle
    ):
        return None
    size = asked_for(message)
    of_size = "" if size is None else f" for {in_words(size)} more"
    allowed = "allowed: a smaller model or batch, or more memory"
    return f"out of memory: there was no room{of_size}; {allowed}"


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
