"""Checks of changes of the policy: when they take effect, and when they have settled."""

from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.runs.fold import COMMITTED, OPEN, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e


class ChangesCheck(LogCheck):
    """A policy takes over while no contribution waits, and has settled once no ticket from before it is left."""

    name = "changes of the policy"

    def __init__(self) -> None:
        # Tickets without a fate from before the newest change; None: it has settled, or there was none.
        self._overlap: set[int] | None = None
        # The last of them was gone at the newest update: the end of its step must settle the policy.
        self._due = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Policy() as change:
                yield from self._changed(change, state)
                self._due = False
                self._overlap = {ticket.number for ticket in state.reading() if ticket.state == OPEN}
            case e.Settled(version):
                if self._overlap is None:
                    yield "the policy settles, and no change of it is under way"
                elif left := sorted(self._overlap & state.held.keys()):
                    yield f"the policy settles while ticket {left[0]} is left from before its change"
                if version != state.versions:
                    yield f"the policy settles at version {version}, but {state.versions} is current"
                self._overlap, self._due = None, False
            case e.Apply(version) if self._overlap is not None and not self._overlap & state.held.keys():
                if not self._due:
                    self._due = True
                    return
                yield f"version {version} is made before the policy settles, but no ticket is left from before it"

    def _changed(self, change: e.Policy, state: LogState) -> Iterator[str]:
        to = change.policy.get("name")
        if state.version is None or state.stop is not None:
            yield f"policy {to} takes over while no policy decides"
        if change.version != state.versions:
            yield f"policy {to} takes over at version {change.version}, but {state.versions} is current"
        if dict(change.former) != dict(state.policy):
            yield f"policy {to} takes over from {dict(change.former)}, but {dict(state.policy)} decides"
        for ticket in state.reading():
            if ticket.state == COMMITTED:
                yield f"policy {to} takes over while ticket {ticket.number} of {ticket.worker} waits for an update"
