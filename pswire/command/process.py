"""What a daemon or command does to its own process: Ctrl-C while it loads, its memory, the end of its supervisor."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pswire.exits import ExitCode

# Parameters of glibc's mallopt(3), and the largest threshold that it takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 * 2**20

# Between looks at the parent; seconds.
PERIOD = 0.5


@contextmanager
def quietly_interrupted() -> Iterator[None]:
    """SIGINT ends the process as SIGTERM does, without a traceback: for the seconds in which a command's modules load.

    Where SIGINT is ignored (in a background job, say) it stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_on_sigterm() -> None:
    """Make the first SIGTERM raise SystemExit, with which a worker's session sends Leave. A scheduler may send more of
    them: they change nothing."""

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(int(ExitCode.TERMINATED))

    signal.signal(signal.SIGTERM, terminated)


def only_newest_tls() -> None:
    """TLS 1.3 is the oldest version that gRPC's servers of this process speak, whoever asks. Before grpc is imported.

    gRPC for Python has no option for it. What it lets one choose are the ciphers of TLS 1.2, and the one chosen here is
    for keys that were shared before, of which there are none: both ends of a TLS 1.2 handshake find nothing in common.
    """
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")


def quiet_grpc() -> None:
    """Before gRPC is loaded, which reads it then: otherwise its library writes a line to standard error for each
    handshake that fails, and strangers could fill a disk with them."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def one_blas_thread() -> None:
    """Before numpy is loaded: its BLAS would start a thread for each processor, and end the process with SIGINT where
    the system gives none. A server multiplies no matrices of any size."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_large_blocks() -> bool:
    """Keep freed blocks of up to 32 MiB for the next payload instead of returning them to the system.

    By default each chunk's buffer is mapped and unmapped again, and the kernel
    clears every page of it: a fifth of the time of moving 67 MB. Call it at the
    start of a process. False where the C library is not glibc: nothing is changed then.
    """
    if not sys.platform.startswith("linux"):
        return False
    # Imported here: the commands' own start needs this module, and not that one.
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, 2**30))


def die_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Send this process a signal, `by`, once `parent`, its supervisor, is no longer its parent.

    Looks every half second: unlike a death signal of the kernel this also
    works where the supervisor starts processes from a short-lived thread.
    """

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(PERIOD)
        os.kill(os.getpid(), by)

    threading.Thread(target=watch, name="parent", daemon=True).start()
