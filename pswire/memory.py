"""How the C library hands out large blocks of memory in a daemon that moves payloads all day."""

import ctypes
import sys

# Parameters of glibc's mallopt(3), and the largest threshold that it takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 * 2**20


def keep_large_blocks() -> bool:
    """Keep freed blocks of up to 32 MiB for the next payload instead of returning them to the system.

    By default each chunk's buffer is mapped and unmapped again, and the kernel
    clears every page of it: a fifth of the time of moving 67 MB. Call it at the
    start of a process. False where the C library is not glibc: nothing is changed then.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, 2**30))
