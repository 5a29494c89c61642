"""The page of log entries, from the declarations that the servers log by."""

import inspect
from collections.abc import Iterator

from docs.generate.table import code, table
from psserver.decisions.entries import KINDS, Part
from psserver.decisions.records import LogRecord, declared

ENTRIES = """# Entries of the decision log

`decisions.jsonl` has one JSON object per line. Every one has the keys of the first table; the others depend on `kind`.
[Run folder and log](runs.md#the-decision-log) explains the log and what `ps-lab check` verifies.
"""
HEAD = (
    (code("i"), "whole number", "number of the entry, from 0 without gaps"),
    (code("t"), "number", "seconds since the start"),
    (code("kind"), "text", "one of those below"),
)


def pages() -> dict[str, str]:
    entries = [ENTRIES, table(("key", "type", "meaning"), HEAD)]
    for kind in (*KINDS.values(), Part):
        entries += [f"\n## {kind.kind}\n", f"{inspect.cleandoc(kind.__doc__ or '')}\n"]
        entries.append(table(("key", "type", "meaning"), _keys(kind)))
    return {"log-entries.md": "\n".join(entries)}


def _keys(kind: type[LogRecord]) -> Iterator[tuple[str, str, str]]:
    for each in declared(kind):
        yield code(each.name), each.noun, each.text + (f"; {each.absent} if absent" if each.omits else "")
