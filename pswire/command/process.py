"""Settings of a daemon's or command's own process: Ctrl-C while it loads, its memory, the end of its supervisor."""

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

# Seconds between checks of the parent.
PERIOD = 0.5

# Seconds until SIGTERM is sent again.
AGAIN = 0.05


@contextmanager
def quietly_interrupted() -> Iterator[None]:
    """Make SIGINT end the process like SIGTERM, without a traceback, while a command's modules load.

    If SIGINT is ignored (for example in a background job), it stays ignored.
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
    """Make the first SIGTERM raise SystemExit, on which a worker's session sends Leave.

    A scheduler may send more of them, which are ignored. Python drops an exception that is raised in a finalizer or in
    a callback of the garbage collector. The signal is then sent once more.
    """
    ending = SystemExit(int(ExitCode.TERMINATED))
    report = sys.unraisablehook

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ending

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if what.exc_value is not ending:
            report(what)
            return
        signal.signal(signal.SIGTERM, terminated)
        # By another thread, because a handler that ran in this hook would raise in vain, too.
        threading.Timer(AGAIN, os.kill, (os.getpid(), signal.SIGTERM)).start()

    sys.unraisablehook = dropped
    signal.signal(signal.SIGTERM, terminated)


def only_newest_tls() -> None:
    """Make TLS 1.3 the oldest version that gRPC servers of this process accept. Call before grpc is imported.

    gRPC for Python has no option for it, but lets one choose the ciphers of TLS 1.2. The one chosen here needs
    pre-shared keys, which do not exist, so a TLS 1.2 handshake finds no common cipher.
    """
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305")


def quiet_grpc() -> None:
    """Silence gRPC's own log. Call before gRPC is imported.

    Otherwise it writes a line to standard error for each failed handshake, and strangers could fill a disk.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def one_blas_thread() -> None:
    """Limit BLAS to one thread. Call before numpy is imported.

    BLAS would start a thread per processor, and kill the process with SIGINT if the system refuses one. A server
    multiplies no matrices.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_large_blocks() -> bool:
    """Keep freed blocks of up to 32 MiB for the next payload instead of returning them to the system.

    By default each chunk's buffer is mapped and unmapped again, and the kernel clears all of its pages: a fifth of the
    time of moving 67 MB. Call it at the start of a process. Returns False, with nothing changed, if the C library is
    not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    # Imported here, because commands need this module, but not that one, at their start.
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, 2**30))


def die_with(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Send this process the signal `by` once `parent`, its supervisor, is no longer its parent.

    Checks every half second. Unlike a death signal of the kernel, this also works if the supervisor starts processes
    from a short-lived thread.
    """

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(PERIOD)
        os.kill(os.getpid(), by)

    threading.Thread(target=watch, name="parent", daemon=True).start()
