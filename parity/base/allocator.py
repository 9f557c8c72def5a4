"""How a process gets its memory from the system: two ways of not getting it page by page.

Left to itself the C library gives every large array back to the kernel, which hands the next
one out as pages of 4,096 bytes, to be zeroed and mapped one by one: a fifth of a training step
whose logits are 45 MB. Both ways are glibc's, and without effect elsewhere.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

# Of mallopt(3), from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

# "Memory Allocation Tunables" of the GNU C Library's manual; from 2.35 on.
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, in one pool for all threads."""
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


def use_huge_pages() -> None:
    """Begin this program anew, with large arrays on pages of 2 MB, unless that is settled.

    The C library reads how it is to work but once, as a program starts. To be called before
    anything has happened.
    """
    environment = with_huge_pages(os.environ)
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that is to use them.

    What it says of huge pages already is left as it is.
    """
    tunables = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in tunables:
        return dict(environment)
    wanted = ":".join([*filter(None, [tunables]), f"{_HUGE_PAGES}=1"])
    return {**environment, _TUNABLES: wanted}
