"""Who may start, which contributions form an update, and what becomes of a stale one.

Rules of this package: standard library only; no clock, no randomness, no I/O,
no threads; a policy hears events and answers with decisions; it sees tickets
and never tensors. The same events give the same decisions, always.
"""

from psserver.policies.decisions import Apply, Cancel, Decision, Drop, Fold, Grant, Part, Stop
from psserver.policies.events import Abandon, Commit, Done, Event, Join, Leave, Ready
from psserver.policies.loading import advice, build, describe, names
from psserver.policies.local_work import LocalRule, local_rule_of
from psserver.policies.policy import Policy, PolicyError, Waiting
from psserver.policies.tensors import TensorParts

__all__ = [
    "Abandon",
    "Apply",
    "Cancel",
    "Commit",
    "Decision",
    "Done",
    "Drop",
    "Event",
    "Fold",
    "Grant",
    "Join",
    "Leave",
    "LocalRule",
    "Part",
    "Policy",
    "PolicyError",
    "Ready",
    "Stop",
    "TensorParts",
    "Waiting",
    "advice",
    "build",
    "describe",
    "local_rule_of",
    "names",
]
