"""Signals of a run, whatever libraries it loads."""

import ctypes
import os
import signal

import pytest

from pslab.launch.events import EventQueue, Signalled, signals_kept, signals_to
from tests.patience import PATIENCE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_library_installs_does_not_last(number: signal.Signals) -> None:
    """As Ray's does, past Python."""
    events: EventQueue = EventQueue()
    with signals_to(events):
        with signals_kept():
            ctypes.CDLL(None).signal(number, signal.SIG_IGN)
        os.kill(os.getpid(), number)
        assert events.get(timeout=PATIENCE) == Signalled(number)
