"""The coordinator: one place decides, numbers and notifies.

Rules of this package: standard library, psserver.policies and psserver.records only;
time is an argument; no I/O, no threads, no tensors. Each input answers with outputs
(log entries and notices to workers), to be carried out in order.
"""

from psserver.coordinator.coordinator import Coordinator, JobTerms
from psserver.coordinator.inputs import Input
from psserver.coordinator.outputs import Declined, Joined, Output, Record, Send, declined
from psserver.coordinator.state import JobState

__all__ = [
    "Coordinator",
    "Input",
    "JobState",
    "JobTerms",
    "Joined",
    "Output",
    "Record",
    "Declined",
    "Send",
    "declined",
]
