"""Log lines as JSON: every call names its event, and every line that is written parses."""

import ast
import json
import logging
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psserver.decisions.entries import KINDS
from psserver.decisions.records import declared
from pswire.logs import events
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


def nodes_of(path: Path, text: str) -> Iterator[ast.AST]:
    """The nodes of a module, if it has that text."""
    source = path.read_text(encoding="utf-8")
    return ast.walk(ast.parse(source)) if text in source else iter(())


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for package in ("pswire", "psserver", "psworker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in nodes_of(path, "log."):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and (node.func.value.id, node.func.attr) in {("log", level) for level in LEVELS}
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def event_calls() -> Iterator[tuple[str, str, set[str]]]:
    """(place, name, fields) of every event(...)."""
    for package in ("pswire", "psserver", "psworker"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in nodes_of(path, "event("):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "event":
                    [name] = node.args
                    if ast.unparse(name) == "entry.event":
                        continue
                    assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: expected a literal name"
                    yield (
                        f"{path.relative_to(ROOT)}:{node.lineno}",
                        str(name.value),
                        {str(keyword.arg) for keyword in node.keywords},
                    )


def test_every_log_call_names_its_event() -> None:
    calls = [(place, call) for place, call in log_calls() if call.func.attr != "debug"]  # type: ignore[attr-defined]
    assert len(calls) > 30
    without = [place for place, call in calls if "extra" not in {keyword.arg for keyword in call.keywords}]
    assert not without, f"add extra=event(...): {without}"


def test_names_of_events_and_fields_are_plain_and_no_common_key() -> None:
    common = {"time", "level", "logger", "event", "message", "exception"}
    of_entries = [
        (kind.kind, kind.event, {each.name for each in declared(kind)})
        for kind in KINDS.values()
        if kind.event
    ]
    for place, name, fields in (*event_calls(), *of_entries):
        assert set(name) <= {*string.ascii_lowercase, "_"} and not common & fields, place


def record(message: str, *values: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("ps-server", logging.WARNING, __file__, 1, message, values, None)
    vars(made).update(more)
    return made


def test_a_line_has_the_common_keys_and_those_of_its_event() -> None:
    made = record("%s: it\nhas %.1f s", "w1", 2.5, **events.event("connection_lost", worker="w1", grace=2.5))
    made.created = 0.000125
    assert json.loads(events.JsonFormatter().format(made)) == {
        "time": "1970-01-01T00:00:00.000125Z",
        "level": "warning",
        "logger": "ps-server",
        "event": "connection_lost",
        "message": "w1: it\nhas 2.5 s",
        "worker": "w1",
        "grace": 2.5,
    }
    assert "\n" not in events.JsonFormatter().format(made)


def test_lines_of_others_are_named_library() -> None:
    assert json.loads(events.JsonFormatter().format(record("hello")))["event"] == "library"


def test_a_crash_a_warning_and_the_last_words_are_lines() -> None:
    code = (
        "import warnings\nfrom pswire.logs import events as logs\nlogs.set_up('ps-worker', 'json')\n"
        "warnings.warn('old')\nlogs.last_words('ps-worker', 'no server', 3)\nraise ValueError('broken\\nhere')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["library", "failed", "crashed"]
    assert lines[1]["message"] == "no server" and lines[1]["exit_code"] == 3
    assert lines[2]["message"] == "broken\nhere" and "Traceback" in lines[2]["exception"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("line", "spoken"),
    [
        ("ps-worker: no server", "ps-worker: no server"),
        ('{"event": "joined"}', '{"event": "joined"}'),
        ('{"time": broken', '{"time": broken'),
        (
            '{"time": "x", "logger": "ps-worker", "level": "error", "event": "failed", "message": "no server"}',
            "ps-worker: no server",
        ),
        (
            '{"time": "x", "logger": "ps-server", "level": "info", "event": "worker_done", "message": "w1 is done"}',
            "ps-server INFO w1 is done",
        ),
    ],
)
def test_a_line_for_people(line: str, spoken: str) -> None:
    assert events.spoken(line) == spoken
