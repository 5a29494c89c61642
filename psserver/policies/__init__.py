"""Policies: which worker may start, which contributions form an update, and how a stale one is treated.

Rules of this package: import only the standard library and pswire's knobs and records; no clock, no randomness,
no I/O, no threads. A policy receives events and answers with decisions. It sees tickets, never tensors. The same
events always give the same decisions.

Your own policy derives from one of three classes: `Policy`, and answers each event itself; `ComposedPolicy`, with a
`Composition` of a gate, a trigger, a staleness rule and further parts; or `PolicySpec`, which adds knobs with ranges
and a description. This module exports everything that such a class needs.
"""

from psserver.policies.builtin import Cost, Facts, PolicySpec
from psserver.policies.builtin.spec import WORKERS
from psserver.policies.composed import ComposedPolicy
from psserver.policies.composition import Composition
from psserver.policies.decisions import (
    Apply,
    Cancel,
    ClearTimer,
    Decision,
    Drop,
    Fold,
    Grant,
    Part,
    PolicyError,
    SetTimer,
    Stop,
)
from psserver.policies.declarations import LocalRule, TensorParts
from psserver.policies.events import (
    Abandon,
    Commit,
    Done,
    Event,
    Join,
    Leave,
    Ready,
    Timer,
    microseconds,
)
from psserver.policies.loading import advice, build, check_trusted, facts, names
from psserver.policies.parts.deadlines import Deadline, DeadlineRule, Grace, OwnPace
from psserver.policies.parts.dssp import DynamicSlack
from psserver.policies.parts.gates import Gate, Immediate, Slack, WaitForUpdate
from psserver.policies.parts.staleness_rules import (
    Block,
    Compensate,
    Downweight,
    DropStale,
    DropVerdict,
    Keep,
    KeepAll,
    StalenessRule,
    Verdict,
)
from psserver.policies.parts.times import Times
from psserver.policies.parts.triggers import CancelStale, Count, Distinct, Everyone, GainPerTime, Trigger
from psserver.policies.parts.view import Contribution, Open, Participant, View
from psserver.policies.parts.weights import (
    Concurrency,
    Constant,
    Hinge,
    Inverse,
    Polynomial,
    Weight,
)
from psserver.policies.policy import Policy, Waiting
from psserver.records import StateError
from pswire.knobs import flag, integer, integers, number, numbers, word

__all__ = [
    "WORKERS",
    "Abandon",
    "Apply",
    "Block",
    "Cancel",
    "CancelStale",
    "ClearTimer",
    "Commit",
    "Compensate",
    "ComposedPolicy",
    "Composition",
    "Concurrency",
    "Constant",
    "Contribution",
    "Cost",
    "Count",
    "Deadline",
    "DeadlineRule",
    "Decision",
    "Distinct",
    "Done",
    "Downweight",
    "Drop",
    "DropStale",
    "DropVerdict",
    "DynamicSlack",
    "Event",
    "Everyone",
    "Facts",
    "Fold",
    "GainPerTime",
    "Gate",
    "Grace",
    "Grant",
    "Hinge",
    "Immediate",
    "Inverse",
    "Join",
    "Keep",
    "KeepAll",
    "Leave",
    "LocalRule",
    "Participant",
    "Open",
    "OwnPace",
    "Part",
    "Policy",
    "PolicyError",
    "PolicySpec",
    "Polynomial",
    "Ready",
    "SetTimer",
    "Slack",
    "StalenessRule",
    "StateError",
    "Stop",
    "TensorParts",
    "Timer",
    "Times",
    "Trigger",
    "Verdict",
    "View",
    "WaitForUpdate",
    "Waiting",
    "Weight",
    "advice",
    "build",
    "check_trusted",
    "facts",
    "flag",
    "integer",
    "integers",
    "microseconds",
    "names",
    "number",
    "numbers",
    "word",
]
