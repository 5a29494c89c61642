"""Ctrl-C while a command's own modules are loaded, which takes seconds: the end, without a traceback."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quietly_interrupted() -> Iterator[None]:
    """SIGINT ends the process as SIGTERM does. Where it is ignored (in a background job, say) it stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
