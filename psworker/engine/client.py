"""The worker's half of the session protocol as a state machine.

Its state follows from the ticket in hand: "idle", "waiting" for a grant, "working" on a ticket, "committing" it, or
"exhausted" after the last one. A commit travels with a request to server 0, outside the session stream. Its sender
repeats it until `answered_commit` brings the answer, which holds the ticket's fate; or until another membership begins,
which knows whether the commit counted; or gives up with `take_back`.

`receive` takes every event in every state. A `Grant` ends waiting. A `Cancel` of the ticket in hand makes it void, and
one of a ticket that was granted ahead removes that. After a `Stop` the loop may finish its ticket; `ready` and
`take_grant` return nothing. After a `Refusal` the loop's inputs raise its error. `ready_ahead`, `report`, `leave` and
`take_back` are legal in every state; any other input that does not fit the state raises SessionError, and changes
nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from pswire.protocol import (
    Abandon,
    Cancel,
    Commit,
    Disposition,
    Done,
    Event,
    Grant,
    Leave,
    Ready,
    Refusal,
    Report,
    Stop,
    StreamRequest,
)
from psworker.errors import Refused, SessionError

KEPT_DISPOSITIONS = 4096

Requests = list[StreamRequest]


class Unanswered:
    """The unanswered abandons and unread fates of one session. The engine that owns it decides what is sent."""

    def __init__(self) -> None:
        # The tickets of commits without a final fate.
        self.awaited: dict[int, None] = {}
        # Abandons that may not have been received.
        self.abandons: dict[int, Abandon] = {}
        self.dispositions: deque[Disposition] = deque(maxlen=KEPT_DISPOSITIONS)
        # The newest ticket whose commit is known to be dropped; 0 for none.
        self.dropped = 0

    def settle(self, disposition: Disposition) -> None:
        """Note that the coordinator has received the ticket's commit or abandon."""
        self.abandons.pop(disposition.ticket, None)
        if disposition.fate == "dropped":
            self.dropped = disposition.ticket
        if disposition.fate != "pending" and disposition.ticket in self.awaited:
            del self.awaited[disposition.ticket]
            self.dispositions.append(disposition)

    def end(self, reason: str) -> None:
        """Another membership begins: send nothing of this one again, and set open fates to "unknown"."""
        for ticket in self.awaited:
            self.dispositions.append(Disposition(ticket, "unknown", reason=reason))
        self.awaited.clear()
        self.abandons.clear()

    def take_dispositions(self) -> list[Disposition]:
        """Return each final disposition once, at most the newest `KEPT_DISPOSITIONS`."""
        found = list(self.dispositions)
        self.dispositions.clear()
        return found


@dataclass(slots=True)
class Position:
    """`next`: the batch after the last committed one; `before`: the same before the newest commit."""

    next: int = 0
    before: int = 0

    def commit(self, batch: int | None) -> None:
        """Advance past `batch`; None for initial values, which are no batch."""
        self.before = self.next
        if batch is not None:
            self.next = max(self.next, batch + 1)

    def take_back(self) -> None:
        """Take back the newest commit, which was not made."""
        self.next = self.before

    def undone(self, next_batch: int) -> int:
        """Return how many batches were committed from that one on."""
        return max(0, self.next - next_batch)

    def go_back(self, next_batch: int) -> int:
        """Undo the batches from that one on, and return their number."""
        undone = self.undone(next_batch)
        self.next = self.before = self.next - undone
        return undone


class ClientEngine:
    """One session of one worker. Its inputs return the messages to send on the session stream, in order.

    An unanswered message stays in `owed`, to be sent again on a new stream; the coordinator counts it once. Only a
    `Report` is never sent again, because nothing depends on it. `lossless_link`: the link eventually delivers every
    message, so nothing is owed, and answers to commits need not be received. One thread at a time may use an engine.
    """

    def __init__(self, *, lossless_link: bool = False) -> None:
        self.lossless_link = lossless_link
        self.stop: Stop | None = None
        self.refusal: Refusal | None = None
        # Whether Ready was sent since the newest grant, alone or with a commit.
        self.asked = False
        # The ticket during which the next one was asked for; and whether the last grant that was asked for ahead came
        # before the ticket before it was committed.
        self.asked_ahead = 0
        self.granted_ahead = False
        # Whether Done was sent, and its reason to end the whole job.
        self.exhausted = False
        self.ends = ""
        # The ticket in hand: the training loop took its grant, and its commit is not answered, nor was it abandoned.
        self.held: int | None = None
        # The commit of the ticket in hand, while it is not answered.
        self.committing: Commit | None = None
        # Received, and not yet taken by the loop.
        self.grants: deque[Grant] = deque()
        # Why granted tickets are void, until a later ticket is taken in hand.
        self.void: dict[int, str] = {}
        self.leaving: Leave | None = None
        # The newest grant that was received.
        self.newest: Grant | None = None
        self.pending = Unanswered()
        self.position = Position()
        # Whether the loop has to begin again at the first uncommitted batch, and does not know it yet.
        self.rolled_back = False

    # State

    @property
    def work(self) -> Literal["idle", "waiting", "working", "committing", "exhausted"]:
        """The training loop's state, which follows from what it has in hand."""
        if self.held is not None:
            return "working" if self.committing is None else "committing"
        if self.exhausted:
            return "exhausted"
        return "waiting" if self.asked or self.grants else "idle"

    @property
    def cancelled(self) -> bool:
        """Whether the loop works on a ticket that is void."""
        return self.held in self.void and self.committing is None

    @property
    def error(self) -> SessionError | None:
        """The error of the coordinator's refusal, if any."""
        refusal = self.refusal
        if refusal is None:
            return None
        return Refused(refusal.message) if refusal.fatal else SessionError(refusal.message)

    @property
    def answered(self) -> bool:
        """Whether waiting for a grant is over."""
        return bool(self.grants) or self.rolled_back or self.stop is not None or self.refusal is not None

    def after(self, ticket: int) -> Grant | None:
        """Return the newest grant if it is later than that of `ticket`. It may be cancelled."""
        newest = self.newest
        return None if newest is None or newest.ticket <= ticket else newest

    def _require(self, fits: bool, action: str, ticket: int | None = None) -> None:
        """Raise the error of a refusal, or SessionError for an input that does not fit the state."""
        if (error := self.error) is not None:
            raise error
        if not fits or ticket not in (None, self.held):
            what = action if ticket is None else f"{action} of ticket {ticket}"
            raise SessionError(f"{what} while {self.work} on ticket {self.held}")

    # Inputs of the training loop

    def ready(self) -> Requests:
        """Ask for the next ticket, unless that was done. Gives up a cancelled ticket in hand."""
        if (self.stop is not None and self.refusal is None) or self.rolled_back:
            return []
        self._require((self.held is None or self.cancelled) and not self.exhausted, "ready")
        self.held = None
        if self.asked or self.grants:
            return []
        self.asked = True
        return [Ready()]

    def take_grant(self) -> Grant | None:
        """Return the received grant, whose ticket is in hand from now on. None: the job has stopped."""
        if self.stop is not None and self.refusal is None:
            return None
        self._require(self.held is None and not self.exhausted and bool(self.grants), "take_grant")
        grant = self.grants.popleft()
        self.held = grant.ticket
        if self.void:
            self.void = {void: why for void, why in self.void.items() if void >= grant.ticket}
        return grant

    def ready_ahead(self, ticket: int) -> Requests:
        """Ask for the next ticket while `ticket` is worked on, unless that is granted or of no use.

        Legal in every state, because the thread that asks need not know the training loop's.
        """
        over = self.stop is not None or self.refusal is not None or self.exhausted
        after = self.after(ticket)
        if over or (after is not None and after.ticket not in self.void):
            return []
        self.asked_ahead = ticket
        return [Ready(ticket)]

    def commit(self, commit: Commit) -> Commit:
        """Return the commit of the ticket in hand, to be sent to server 0 until it is answered.

        It does not ask for a ticket that was granted ahead, nor for one that was asked for and will be, as the one
        before: its version would come twice.
        """
        self._require(self.committing is None, "commit", commit.ticket)
        if commit.ready and (self.grants or (self.granted_ahead and self.asked_ahead == commit.ticket)):
            # If the policy grants nothing ahead this time, `ready` asks once more.
            commit = replace(commit, ready=False)
        self.asked, self.committing = commit.ready, commit
        if self.lossless_link:
            self.held = self.committing = None
        else:
            self.pending.awaited[commit.ticket] = None
        self.position.commit(None if self._initialises(commit.ticket) else commit.batch)
        return commit

    def answered_commit(self, ticket: int, events: Iterable[Event]) -> bool:
        """Take the answer to the commit of the ticket in hand: its fate, and events that follow from it.

        Returns whether the ticket is in hand again, void, because a cancel came before the commit. The answer to a
        former member says nothing.
        """
        if self.committing is None or self.committing.ticket != ticket:
            return self.held == ticket
        self.held, crossed = None, False
        self.committing = None
        for each in events:
            crossed = crossed or (isinstance(each, Disposition) and each.ticket == ticket and each.cancelled)
            self.receive(each)
        if crossed:
            self.held = ticket
            self.void.setdefault(ticket, "the cancel crossed its commit")
            self.position.take_back()
        return crossed

    def take_back(self, ticket: int) -> bool:
        """Stop sending the commit of the ticket, because it was refused before it was made, or the ticket is void.

        Returns whether the ticket is in hand again, perhaps void. False: another membership has begun, and the commit
        counted before.
        """
        if self.committing is not None and self.committing.ticket == ticket:
            self.pending.awaited.pop(ticket, None)
            self.position.take_back()
            self.committing, self.asked = None, False
        return self.held == ticket

    def _initialises(self, ticket: int | None) -> bool:
        """Whether the newest grant says that the ticket is for initial values."""
        newest = self.newest
        return newest is not None and newest.initialise and newest.ticket == ticket

    def abandon(self, ticket: int, reason: str, *, unit_ends: bool = False) -> Requests:
        """Give the ticket in hand back. Sends nothing for a cancelled ticket."""
        self._require(self.committing is None, "abandon", ticket)
        self.held = None
        if self.void.pop(ticket, None) is not None:
            return []
        abandon = Abandon(ticket, reason, unit_ends)
        if not self.lossless_link:
            self.pending.abandons[ticket] = abandon
        return [abandon]

    def done(self, ends: str = "") -> Requests:
        """Say that there is no more data here or, with a reason, that the whole job is to end.

        The coordinator abandons a ticket in hand.
        """
        self._require(self.committing is None, "done")
        if self.rolled_back:
            return []
        self.held = None
        if self.exhausted:
            return []
        self.exhausted, self.ends = True, ends
        return [Done(ends)]

    def report(self, version: int, metrics: Mapping[str, float]) -> Requests:
        """Report metrics of a version."""
        return [Report(version, dict(metrics))]

    def leave(self, reason: str) -> Requests:
        """End the session with the last message."""
        self.leaving = Leave(reason)
        return [self.leaving]

    # Inputs of the link

    def receive(self, event: Event) -> None:
        """Take an event of the session stream, or of the answer to a commit."""
        match event:
            case Grant():
                # Grants come again after a reconnection.
                newest = self.newest
                if newest is None or event.ticket > newest.ticket:
                    if self.held is not None:
                        self.granted_ahead = True
                    elif newest is not None and self.asked_ahead == newest.ticket:
                        self.granted_ahead = False
                    self.newest, self.asked = event, False
                    self.grants.append(event)
            case Disposition():
                if event.cancelled:
                    # The ticket came to nothing, as its holder learns: it is no contribution.
                    self.pending.awaited.pop(event.ticket, None)
                self.pending.settle(event)
            case Cancel():
                self._cancelled(event)
            case Stop():
                self.stop = event
            case Refusal():
                self.refusal = event
                if not event.fatal:
                    self.pending.awaited.pop(event.ticket, None)
            case _:
                assert_never(event)

    def owed(self) -> Requests:
        """Return what may not have been received, to be sent first on a new stream."""
        requests: Requests = list(self.pending.abandons.values())
        # Also if a commit that is on its way asks: asking twice gives one ticket. The grant that it asked for may have
        # been lost with the former stream, and cancelled.
        if self.asked:
            requests.append(Ready())
        if self.exhausted:
            requests.append(Done(self.ends))
        if self.leaving is not None:
            requests.append(self.leaving)
        return requests

    def renew(self, reason: str, next_batch: int | None = None, *, again: bool = False) -> int:
        """Continue as a new member, because the coordinator gave the former one up or went back to a checkpoint.

        Tickets become void, and open fates "unknown". `next_batch`: the first batch that does not count as committed;
        None if batches have no numbers. `again`: the loop has to begin there. Returns how many committed batches do not
        count.
        """
        held, commit = self.held, self.committing
        self.void = {} if held is None else {held: reason}
        self.committing = None
        if commit is not None and self._counted(commit, next_batch):
            self.held = None
        self.grants.clear()
        self.pending.end(reason)
        undone = 0 if next_batch is None else self.position.go_back(next_batch)
        if again:
            self.rolled_back = True
            self.asked = self.exhausted = False
        return undone

    def _counted(self, commit: Commit, next_batch: int | None) -> bool:
        """Whether a commit that was not answered counted all the same. Without numbers of batches nobody knows."""
        return next_batch is None or self._initialises(commit.ticket) or commit.batch < next_batch

    def undone(self, next_batch: int) -> int:
        """How many batches were committed from that one on."""
        return self.position.undone(next_batch)

    def take_rollback(self) -> bool:
        """Return, once, whether the loop has to begin again, and then give up the ticket in hand."""
        found, self.rolled_back = self.rolled_back, False
        if found:
            self.held = self.committing = None
        return found

    def dispositions(self) -> list[Disposition]:
        """Return the final fates of commits since the last call, each once."""
        return self.pending.take_dispositions()

    def _cancelled(self, cancel: Cancel) -> None:
        self.void[cancel.ticket] = cancel.reason
        # A ticket that was granted ahead is not begun.
        self.grants = deque(grant for grant in self.grants if grant.ticket != cancel.ticket)
        self.pending.abandons.pop(cancel.ticket, None)
