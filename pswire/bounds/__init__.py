"""What each field of each message may hold: one table, checked before anything acts on a message.

A receiver checks a message as soon as it is parsed. A field beyond its bound
is refused with the field, the bound and what came; nothing has changed then.
Whether a value makes sense (is the ticket open, does the plan fit?) is for
the code that acts on it; the table keeps every message cheap and every number
within what the receiver's own arithmetic can hold.

The rows are in `session_rows` and `shard_rows`, by file of protos; `checks`
compiles them. `tests/pswire/test_bounds.py` holds the table against the
protos: a field without a row fails there.
"""

from pswire.bounds.checks import BOUNDS, TABLE, BoundError, check, checker
from pswire.bounds.kinds import Bound, Closed, Data, Many, Nested, Real, Row, Text, Whole

__all__ = [
    "BOUNDS",
    "TABLE",
    "Bound",
    "BoundError",
    "Closed",
    "Data",
    "Many",
    "Nested",
    "Real",
    "Row",
    "Text",
    "Whole",
    "check",
    "checker",
]
