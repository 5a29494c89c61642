"""The link under a session, for tests of what lies below a loop of turns."""

from typing import Any

import psworker
from psworker.link import Link


def connect_link(*arguments: Any, **options: Any) -> Link:
    """Connect as `psworker.connect` does, and return the session's link."""
    return psworker.connect(*arguments, **options)._link
