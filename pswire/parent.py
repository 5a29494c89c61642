"""A daemon that was started by a supervisor goes when the supervisor goes, however that ends."""

import os
import signal
import threading

PERIOD = 0.5


def die_with(parent: int) -> None:
    """Send this process SIGTERM once `parent` is no longer its parent.

    Looks every half second: unlike a death signal of the kernel this also
    works where the supervisor starts processes from a short-lived thread.
    """

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(PERIOD)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
