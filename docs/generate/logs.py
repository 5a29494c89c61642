"""The pages of log events and of log entries, from the tables and declarations that the daemons log by."""

import inspect
from collections.abc import Iterator

from docs.generate.table import code, table
from psserver.decisions.entries import KINDS, Part
from psserver.decisions.records import LogRecord, declared
from pswire.logs.events import BOTH, EVENTS, SERVER, Event

INTRODUCTION = """# Log events

With `--log-format json` (`ps-server`, `ps-worker`, `ps-lab run`) every line of standard error is one JSON object. All
have `time` (UTC, microseconds), `level`, `logger` (the command), `event` and `message`; besides, the fields of the
event, and `exception` with a traceback where there is one. Names of events and fields stay; messages may change.
Libraries that write to standard error by themselves, such as TensorFlow's C++ part, are not caught.

In a run folder, `logs/NAME.log` of `ps-lab run --log-format json` also has what the process printed on standard output:
JSON objects too, with an `event` and without a `time`.

"""


ENTRIES = """# Entries of the decision log

`decisions.jsonl` has one JSON object per line. Every one has the keys of the first table; the others depend on `kind`.
[Run folder and log](runs.md#the-decision-log) explains the log and what `ps-lab check` verifies.
"""
HEAD = (
    (code("i"), "whole number", "number of the entry, from 0 without gaps"),
    (code("t"), "number", "seconds since the start"),
    (code("kind"), "text", "one of those below"),
)


def all_events() -> dict[str, Event]:
    """Return the events of the table and those of entries that a server also logs, by name."""
    found = dict(EVENTS)
    for kind in KINDS.values():
        if kind.event:
            meaning = inspect.cleandoc(kind.__doc__ or "").split("\n")[0].rstrip(".")
            found[kind.event] = Event(SERVER, tuple(each.name for each in declared(kind)), meaning)
    return found


def pages() -> dict[str, str]:
    rows = [
        (
            code(name),
            "both" if each.by == BOTH else code(each.by),
            ", ".join(map(code, each.fields)),
            each.meaning,
        )
        for name, each in all_events().items()
    ]
    entries = [ENTRIES, table(("key", "type", "meaning"), HEAD)]
    for kind in (*KINDS.values(), Part):
        entries += [f"\n## {kind.kind}\n", f"{inspect.cleandoc(kind.__doc__ or '')}\n"]
        entries.append(table(("key", "type", "meaning"), _keys(kind)))
    return {
        "log-events.md": INTRODUCTION + table(("event", "of", "fields", "meaning"), rows),
        "log-entries.md": "\n".join(entries),
    }


def _keys(kind: type[LogRecord]) -> Iterator[tuple[str, str, str]]:
    for each in declared(kind):
        yield code(each.name), each.noun, each.text + (f"; {each.absent} if absent" if each.omits else "")
