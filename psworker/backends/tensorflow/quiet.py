"""Keep TensorFlow's start-up chatter off the terminal, and nothing else.

Some of it is written by static initialisers of TensorFlow's shared libraries
before any log level is read, so file descriptor 2 itself is diverted while
they run; every line that is not known chatter is then written to it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_STAMP = r"[IW]\d{4} \d\d:\d\d:"  # glog: information and warnings of the C++ parts
_CHATTER = re.compile(
    rf"{_STAMP}"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] "
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|To enable the following instructions:"
    r"|E\d{4} .*failed call to cuInit"
)


def hush() -> None:
    """Set TensorFlow's own log level, unless the user did. Call it before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextmanager
def without_chatter() -> Iterator[None]:
    """Divert file descriptor 2; at the end, write to it what is no chatter (all of it after an exception)."""
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            sink.seek(0)
            _replay(sink.read().decode(errors="replace"), everything=failed)


def _replay(text: str, *, everything: bool) -> None:
    for line in text.splitlines(keepends=True):
        if everything or not _CHATTER.match(line):
            os.write(2, line.encode())
