"""Bounds on each field of each message, checked before anything acts on the message.

A receiver checks a message as soon as it is parsed. A field beyond its bound is refused, with the field, the bound and
the value; nothing has changed then. Whether a value makes sense (is the ticket open, does the plan fit?) is decided by
the code that acts on it; bounds keep every message cheap and every number within the receiver's own arithmetic.

Bytes are bounded before they are parsed, by method (`LARGEST`): a parsed message can take thirty times their memory.

A bound stands beside its field in protos/pswire/v1 (`options.proto`); `kinds` reads the bounds, and `checks` compiles
them. A process with an unbounded field does not start.
"""

from pswire.bounds.checks import BOUNDS, TABLE, BoundError, check, checker
from pswire.bounds.kinds import (
    HEADER_BYTES,
    LARGEST,
    MESSAGE_BYTES,
    Bound,
    Closed,
    Data,
    FieldBound,
    Many,
    Nested,
    Real,
    Text,
    Whole,
)

__all__ = [
    "BOUNDS",
    "HEADER_BYTES",
    "LARGEST",
    "MESSAGE_BYTES",
    "TABLE",
    "Bound",
    "BoundError",
    "Closed",
    "Data",
    "Many",
    "Nested",
    "Real",
    "FieldBound",
    "Text",
    "Whole",
    "check",
    "checker",
]
