"""How this process gets its memory from the system."""

import ctypes

# Of mallopt(3), from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, in one pool for all threads.

    Left to itself it gives every large array back to the kernel, which hands the next one out
    as pages to be zeroed and mapped one by one: of the logits of a step that took as long as
    adding the bias to them. Without effect where the C library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, 1 << 30)
        library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
