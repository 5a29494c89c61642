"""The page of log events, from the table that the daemons log by."""

from docs.generate.table import code, table
from pswire.logs.events import BOTH, EVENTS

INTRODUCTION = """# Log events

With `--log-format json` (`ps-server`, `ps-worker`, `ps-lab run`) every line of standard error is one JSON object. All
have `time` (UTC, microseconds), `level`, `logger` (the command), `event` and `message`; besides, the fields of the
event, and `exception` with a traceback where there is one. Names of events and fields stay; messages may change.
Libraries that write to standard error by themselves, such as TensorFlow's C++ part, are not caught.

In a run folder, `logs/NAME.log` of `ps-lab run --log-format json` also has what the process printed on standard output:
JSON objects too, with an `event` and without a `time`.

"""


def pages() -> dict[str, str]:
    rows = [
        (
            code(name),
            "both" if each.by == BOTH else code(each.by),
            ", ".join(map(code, each.fields)),
            each.meaning,
        )
        for name, each in EVENTS.items()
    ]
    return {"log-events.md": INTRODUCTION + table(("event", "of", "fields", "meaning"), rows)}
