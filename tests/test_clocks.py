"""Decisions use monotonic time: a wall clock that jumps, by NTP or by hand, ends no wait and begins none.

Files are parsed, as in `test_imports.py`. Whatever reads the wall clock, or a time that was set by it, stands in the
table below with the reason why a jump does no harm there.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.test_imports import PACKAGES, ROOT

# Of a module, by the name that it is imported under.
WALL = {
    "time": {
        *("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "mktime"),
        *("clock_gettime", "clock_gettime_ns"),
    },
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
# Of a file or a log record, whatever it is called: the system sets them by the wall clock.
STAMPS = {
    *("st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns", "st_birthtime"),
    *("getmtime", "getctime", "getatime", "created", "asctime"),
}

CERTIFICATES = "certificates count by the wall clock"
CHANGED = "equal or not, beside the size: no time is computed from it"
ALLOWED = {
    ("psserver/serving.py", "time.strftime"): "the name of a new run folder",
    ("psserver/service/life/listeners.py", "time.gmtime"): "a certificate's end, for people",
    ("psserver/service/life/listeners.py", "time.strftime"): "a certificate's end, for people",
    ("psserver/service/life/listeners.py", "time.time"): CERTIFICATES,
    ("psserver/service/job/log_file.py", ".st_mtime_ns"): "equal or not, beside the file's number",
    ("pswire/logs/events.py", ".created"): "the time of a log line, for people",
    ("pswire/logs/events.py", "time.gmtime"): "the time of a log line, for people",
    ("pswire/logs/events.py", "time.strftime"): "the time of a log line, for people",
    ("pslab/authority.py", "datetime.now"): CERTIFICATES,
    ("pswire/security/files.py", ".st_mtime_ns"): CHANGED,
    ("pslab/certificates.py", "datetime.now"): CERTIFICATES,
    ("pslab/commands/certs.py", "datetime.now"): CERTIFICATES,
    ("pslab/launch/remote/keeper.py", ".st_mtime_ns"): CHANGED,
    ("pslab/observe/tensorboard.py", ".st_mtime"): "TensorBoard's axis, for people",
    ("pslab/observe/tensorboard.py", "time.time"): "TensorBoard's axis, for people",
}


def last_name(node: ast.expr) -> str:
    """`datetime` of `datetime.datetime`; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def wall_clocks(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a file that is a time by the wall clock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = last_name(node.value)
            if node.attr in WALL.get(owner, ()):
                yield node.lineno, f"{owner}.{node.attr}"
            elif node.attr in STAMPS:
                yield node.lineno, f".{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "os.path"):
            # Then nothing says where it is from.
            known = WALL["time"] | STAMPS
            yield from ((node.lineno, f"{node.module}.{n.name}") for n in node.names if n.name in known)
        elif isinstance(node, ast.Import):
            # A name of its own would hide it.
            hidden = [n.name for n in node.names if n.name in WALL and n.asname not in (None, n.name)]
            yield from ((node.lineno, f"{name} as another name") for name in hidden)


def test_decisions_read_no_wall_clock() -> None:
    found = {
        (str(path.relative_to(ROOT)), what): line
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, what in wall_clocks(path.read_text(encoding="utf-8"))
    }
    new = [f"{path}:{found[path, what]}: {what}" for path, what in found.keys() - ALLOWED.keys()]
    assert not new, f"use pswire.running.now, or say in the table why a jump does no harm: {sorted(new)}"
    assert not ALLOWED.keys() - found.keys(), "not there any more; correct the table"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import time\ndeadline = time.time() + 5", "time.time"),
        ("import time\nclock = time.time_ns", "time.time_ns"),
        ("import time\nsaid = time.strftime('%H')", "time.strftime"),
        ("import datetime\nnow = datetime.datetime.now()", "datetime.now"),
        ("from datetime import date\nday = date.today()", "date.today"),
        ("x = 1\nfrom time import time", "time.time"),
        ("x = 1\nimport time as clock", "time as another name"),
        ("from pathlib import Path\nold = Path('x').stat().st_mtime", ".st_mtime"),
        ("import os\nold = os.path.getmtime('x')", ".getmtime"),
    ],
)
def test_a_wall_clock_is_found(source: str, what: str) -> None:
    assert (2, what) in set(wall_clocks(source))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "import asyncio\nasyncio.get_running_loop().time()",
        "self.loop.time()",
        "now",
    ],
)
def test_monotonic_time_is_fine(source: str) -> None:
    assert list(wall_clocks(source)) == []
