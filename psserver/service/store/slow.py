"""Progress of long work in the log: what is being done, how far it is, for how long."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pswire import running
from pswire.logs.events import event

log = logging.getLogger("ps-server")

#: Seconds after which it is said first; then each time that they have doubled.
FIRST: Final = 30.0


def mib_of(done: int, total: int) -> str:
    """Return how much of how much, for people."""
    return f"{done / 2**20:.1f} of {total / 2**20:.1f} MiB"


@contextmanager
def said(what: Callable[[], str], first: float = FIRST) -> Iterator[None]:
    """Log what is done inside the block, if it takes long. `what`: a sentence of how far it is now; any thread may
    call it."""
    over, began = threading.Event(), running.now()

    def watch() -> None:
        wait = first
        while not over.wait(wait):
            seconds = running.now() - began
            log.info("%s (%.0f s)", what(), seconds, extra=event("takes_long", seconds=seconds))
            wait = max(seconds, first)

    thread = threading.Thread(target=watch, name="slow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
