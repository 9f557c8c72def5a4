"""Large arrays on pages of 2 MB, which the kernel provides faster than those of 4,096 bytes.

That is specific to glibc, and has no effect elsewhere; `parity.base.process` has another way.
"""

import os
import sys
from collections.abc import Mapping

# See "Memory Allocation Tunables" in the manual of the GNU C Library; since 2.35.
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


def use_huge_pages() -> None:
    """Re-exec with large arrays on pages of 2 MB, unless GLIBC_TUNABLES already says which.

    The C library reads the variable only once, when a program starts. Call this before anything
    else.
    """
    environment = with_huge_pages(os.environ)
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with which a program uses huge pages.

    If it already has a setting for them, that is kept.
    """
    tunables = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in tunables:
        return dict(environment)
    wanted = ":".join([*filter(None, [tunables]), f"{_HUGE_PAGES}=1"])
    return {**environment, _TUNABLES: wanted}
