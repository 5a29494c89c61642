"""Logging: plain lines for people, or one JSON object per line with a stable event name.

Every logging call names its event, `log.info("%s is back", worker, extra=event("connection_back", worker=worker))`. A
server also logs entries of the decision log, which name their events themselves. Texts may change between releases;
names of events and fields do not.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final

from pswire.logs.lines import LONGEST, MAX_LINES, BoundedHandler

FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"


def event(name: str, **fields: object) -> dict[str, object]:
    """Return the `extra` of a log call."""
    return {"event": name, "fields": fields}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, event, message, the event's fields, and any `exception`. Texts are bounded."""

    def format(self, record: logging.LogRecord) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{whole}.{int(record.created % 1 * 1e6):06d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "library"),
            "message": record.getMessage()[:LONGEST],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))[-MAX_LINES * 100 :]
        return json.dumps(line, default=str)


class JsonHandler(BoundedHandler):
    """Bounded like lines for people, but without escaping, which JSON does itself."""

    def format(self, record: logging.LogRecord) -> str:
        return JsonFormatter().format(record)


def set_up(command: str, form: str) -> None:
    """Make the root logger write to standard error in one of FORMATS. In "json", warnings and crashes are lines."""
    handler = JsonHandler(sys.stderr) if form == "json" else BoundedHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if form != "json":
        return
    logging.captureWarnings(True)

    def crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        info = (kind, error, trace)
        logging.getLogger(command).critical("%s", error, exc_info=info, extra=event("crashed"))

    sys.excepthook = crashed


def last_words(command: str, message: str, code: int) -> None:
    """Print why the command ends, on standard error in the form of `set_up`."""
    if any(isinstance(handler, JsonHandler) for handler in logging.root.handlers):
        logging.getLogger(command).error("%s", message, extra=event("failed", exit_code=code))
    else:
        print(f"{command}: {message}", file=sys.stderr)


def spoken(line: str) -> str:
    """Return a daemon's log line for people: the message of a JSON line, any other line as it is."""
    if not line.startswith('{"time"'):
        return line
    try:
        parsed = json.loads(line)
        who, message = str(parsed["logger"]), str(parsed["message"])
    except (ValueError, KeyError, TypeError):
        return line
    if parsed.get("event") == "failed":
        return f"{who}: {message}"
    return f"{who} {str(parsed.get('level', '')).upper()} {message}" + _trace(parsed)


def _trace(parsed: Mapping[str, Any]) -> str:
    return f"\n{parsed['exception']}".rstrip() if "exception" in parsed else ""
