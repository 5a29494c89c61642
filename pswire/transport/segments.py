"""Memory shared by two processes of one machine: anonymous files, whose descriptors a Unix socket hands over.

A segment is an anonymous file (memfd). No directory lists it, so nothing is left behind however its processes end: the
kernel frees it with the last process that has it open or mapped. A worker gets descriptors with a frame of its
connection (`pswire.transport.framed_socket`). Servers with replicas open each other's as /proc/<pid>/fd/<fd>, which the
kernel allows to the same user only; a random token at its beginning proves that it is the right one.
"""

import fcntl
import hmac
import mmap
import os
import secrets
import stat
import sys
import weakref
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# The first page holds the token; the contents follow, aligned for any kernel.
HEADER: Final = 4096
TOKEN_BYTES: Final = 16
# From linux/fcntl.h, since Linux 5.1; Python has no name for it. Existing mappings may still be written to; nobody gets
# a new writable one, and nobody may write to the file.
F_SEAL_FUTURE_WRITE: Final = 0x10
# The name of the files in `readlink` and `ls -l /proc/*/fd`.
NAME: Final = "pswire"


# What a file of ours cannot do, so that no access to it is fatal.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_numbers: Final = count(1)


class SegmentError(OSError):
    """No shared memory: it cannot be made, or not be opened here. The text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a segment: open as `fd` in process `pid`, with `nbytes` after its first page."""

    pid: int
    fd: int
    token: bytes
    nbytes: int


class Segment:
    """A segment made by this process. It lives as long as `memory`, or an array in it, is in use anywhere."""

    def __init__(self, nbytes: int, *, writable: bool) -> None:
        """`writable`: by other processes too. Otherwise only this mapping can ever be written to.

        Raises SegmentError if the system cannot provide the memory, now rather than at its first use.
        """
        size = HEADER + nbytes
        fd, self.memory = _made(size, writable)
        # Other processes find the file only while this one has it open.
        weakref.finalize(self.memory, os.close, fd).atexit = False
        # Of this process, and of no other segment of it.
        self.number = next(_numbers)
        token = secrets.token_bytes(TOKEN_BYTES)
        self.memory[:TOKEN_BYTES] = token
        self.place = Place(os.getpid(), fd, token, nbytes)


def _made(size: int, writable: bool) -> tuple[int, mmap.mmap]:
    if not sys.platform.startswith("linux"):
        raise SegmentError(f"shared memory is for Linux, this is {sys.platform}")
    fd = -1
    try:
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        if not writable:
            _keep_for_readers(fd)
        # After sealing, because allocation takes long enough for another process to map the file.
        os.posix_fallocate(fd, 0, size)
        # If another process could shrink the file, every access here could be fatal.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, SegmentError):
            raise
        raise SegmentError(f"cannot get {size} bytes of shared memory: {error.strerror}") from error
    return fd, memory


def _keep_for_readers(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except OSError as error:
        raise SegmentError(
            "expected a kernel that keeps other processes from writing to shared weights (F_SEAL_FUTURE_WRITE, "
            f"Linux 5.1 or later), got Linux {os.uname().release}: {error.strerror}"
        ) from error


def map_descriptor(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map a segment with `nbytes` of contents that another process has handed over, and close the descriptor.

    Raises SegmentError unless it is sealed memory of that size.
    """
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != HEADER + nbytes:
            raise SegmentError(
                f"expected memory of {HEADER + nbytes} bytes, got {facts.st_size} bytes of a file"
            )
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise SegmentError("expected memory that nobody can cut short, got a file without seals")
        return mmap.mmap(fd, HEADER + nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except SegmentError:
        raise
    except OSError as error:
        raise SegmentError(f"a descriptor is of no shared memory: {error.strerror}") from error
    finally:
        os.close(fd)


def open_segment(place: Place, *, writable: bool) -> mmap.mmap:
    """Map a segment of another process. Raises SegmentError unless it exists, may be opened, and is the right one."""
    path = f"/proc/{place.pid}/fd/{place.fd}"
    try:
        # Check first, because opening an arbitrary file could have effects.
        if not os.readlink(path).startswith(f"/memfd:{NAME}"):
            raise SegmentError(f"{path} is no segment of a ps-server")
        fd = os.open(path, os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY))
        try:
            if os.fstat(fd).st_size != HEADER + place.nbytes:
                raise SegmentError(
                    f"{path} has {os.fstat(fd).st_size} bytes, expected {HEADER + place.nbytes}"
                )
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            memory = mmap.mmap(fd, HEADER + place.nbytes, access=access)
        finally:
            os.close(fd)
    except SegmentError:
        raise
    except OSError as error:
        raise SegmentError(f"{path} cannot be opened: {error.strerror}") from error
    if not hmac.compare_digest(memory[:TOKEN_BYTES], place.token):
        raise SegmentError(f"{path} is the segment of another process")
    return memory


def floats(memory: mmap.mmap) -> Floats:
    """Return the contents as float32; read-only if the mapping is. The array keeps the mapping alive."""
    return np.frombuffer(memory, np.float32, offset=HEADER)


def words(memory: mmap.mmap) -> NDArray[np.int64]:
    """Return the contents as 64-bit words. Each word has one writer, and is read and written atomically."""
    return np.frombuffer(memory, np.int64, offset=HEADER)


def here() -> str:
    """Identify this kernel and process namespace, within which processes find each other's segments by number.

    Empty if unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
