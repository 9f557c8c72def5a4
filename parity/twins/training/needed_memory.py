"""Whether there is room for what a training needs, told before it is asked for."""

import re
import resource
from pathlib import Path

import numpy as np

from parity.base.machine import in_words


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
        f"{in_words(limit[0])}; allowed: a smaller --hidden-size, --embedding-size, "
        "--num-layers, --vocabulary-size or --batch-size, fewer --replicas, or more memory"
    )


def require_memory(size: int) -> None:
    """Check that so many bytes could be had now, before a library that ends the process asks.

    Raises:
      MemoryError: if they could not; NumPy says how many they were.
    """
    np.empty(size, np.uint8)


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
