"""Ends a process together with the process that started it."""

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl(2)


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, even if the parent is killed.

    Args:
      parent: the parent's process id.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the kernel was asked
        os._exit(1)
