"""What each field of each message may hold, checked before anything acts on a message.

A receiver checks a message as soon as it is parsed. A field beyond its bound
is refused with the field, the bound and what came; nothing has changed then.
Whether a value makes sense (is the ticket open, does the plan fit?) is for
the code that acts on it; bounds keep every message cheap and every number
within what the receiver's own arithmetic can hold.

A bound stands beside its field in protos/pswire/v1 (`options.proto`); `kinds`
reads them, and `checks` compiles them. A process with a field that has none does not start.
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
