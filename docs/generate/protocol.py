"""The page of the protocol: methods with their callers, messages with the bounds of their fields."""

from collections.abc import Iterator
from itertools import groupby

from docs.generate.table import code, table
from psserver.service.guard.authorization import ROLES
from pswire.bounds import LARGEST, TABLE, Bound, Closed, Data, Many, Nested, Real, Text, Whole

INTRODUCTION = """# The protocol

Made from `protos/pswire/v1`. A server admits a call only from its callers, refuses a message of more bytes before it
parses it, and checks each field before it acts on it; a worker checks what it receives in the same way.

## Methods

"""


def pages() -> dict[str, str]:
    methods = [
        (code(path.lstrip("/")), ", ".join(sorted(roles)), str(LARGEST[path]))
        for path, roles in ROLES.items()
        if path.startswith("/pswire.v1.")
    ]
    return {
        "protocol.md": INTRODUCTION
        + table(("method", "callers", "bytes of a message, at most"), methods)
        + "".join(_messages())
    }


def _messages() -> Iterator[str]:
    yield "\n## Messages\n"
    for message, rows in groupby(TABLE, lambda row: row.message):
        cells = [(code(row.field), _words(row.bound), row.why) for row in rows]
        yield f"\n### {message}\n\n" + table(("field", "bound", "why"), cells)


def _words(bound: Bound) -> str:
    match bound:
        case Whole(most, least):
            return f"{least} to {most}"
        case Real(most, least, nonfinite):
            return f"{least:g} to {most:g}" + (", or not finite" if nonfinite else ", finite")
        case Text(most, printable, plain):
            kinds = [word for word, is_so in (("printable", printable), ("ASCII", plain)) if is_so]
            return f"at most {most} {' '.join(kinds)} characters".replace("  ", " ")
        case Data(most):
            return f"at most {most} bytes"
        case Many(most, each, _):
            return f"at most {most}" + (f" of {_words(each)}" if each is not None else "")
        case Nested():
            return "a message"
        case Closed():
            return "its type"
