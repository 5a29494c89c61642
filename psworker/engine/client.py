"""The worker's half of the session protocol as a state machine.

The ticket in hand determines the legal inputs: `psworker.engine.legal` has the table.

A commit that is rolled back leaves its ticket in hand, as cancelled if a `Cancel` came meanwhile.

The session stream may answer a commit before the exchange that carries it ends. Then nothing is in hand, but the loop
does not know that yet. Before `ready` or `done` it may still give one input for that ticket, once: `commit`, which
sends only a `Ready` that is due, or `rollback_commit`, which leaves the ticket cancelled.

`receive` takes every event in every state. A `Grant` ends waiting. A `Cancel` of the ticket in hand leads from working
to cancelled; a `Cancel` of a ticket granted ahead removes it. The `Disposition` of a commit that an exchange carries
ends committing. After a `Stop` the loop may finish its ticket; `ready` and `take_grant` return nothing. After a
`Refusal` all inputs of the table raise its error, except `rollback_commit`, which sends nothing and is part of handling
the exchange's own error.

`ready_ahead`, `report` and `leave` are legal in every state. `ready_ahead` sends nothing after a `Stop` or `Refusal`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

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
    Request,
    Stop,
)
from psworker.engine.legal import LEGAL, WorkState, error_of, illegal
from psworker.engine.pending import Pending, Position
from psworker.errors import SessionError, Voided

Requests = list[Request]


class ClientEngine:
    """One session of one worker. Its inputs return the messages to send, in order.

    An unanswered message stays in `owed`, to be sent again on a new stream; the coordinator counts it once. Only a
    `Report` is never sent again, because nothing depends on it. `lossless_link`: the link eventually delivers every
    message, so nothing is owed, and dispositions of commits need not be received. One thread at a time may use an
    engine.
    """

    def __init__(self, *, lossless_link: bool = False) -> None:
        self.lossless_link = lossless_link
        self.stop: Stop | None = None
        self.refusal: Refusal | None = None
        # Whether Ready was sent since the newest grant, alone or with a commit.
        self.asked = False
        # The ticket during which the next one was asked for; whether an exchange with a commit is not answered yet; and
        # whether the last grant that was asked for ahead came before the ticket before it was committed.
        self.asked_ahead = 0
        self.in_exchange = self.granted_ahead = False
        # Whether Done was sent, and its reason to end the whole job.
        self.exhausted = False
        self.ends = ""
        # The ticket in hand: the training loop took its grant, and has neither committed nor abandoned it.
        self.held: int | None = None
        # Received, and not yet taken by the loop.
        self.grants: deque[Grant] = deque()
        # Why granted tickets are void. A later grant clears it, except for the ticket in hand or in an exchange.
        self.void: dict[int, str] = {}
        self.leaving: Leave | None = None
        # The newest grant that was received.
        self.newest: Grant | None = None
        # The last ticket whose commit an exchange carried. Only the exchange knows whether it was made.
        self.exchanged: int | None = None
        self.pending = Pending()
        self.position = Position()
        # The ticket in hand when the membership ended. Its batches can be worked on again under another ticket.
        self.forfeited: int | None = None
        # Whether the loop has to begin again at the first uncommitted batch, and does not know it yet.
        self.rolled_back = False

    # State

    @property
    def work(self) -> WorkState:
        """The training loop's state, which follows from what it has in hand."""
        if self.held is not None:
            return "cancelled" if self.held in self.void else "working"
        if self.exchanged is not None and self.exchanged in self.pending.commits:
            return "committing"
        if self.exhausted:
            return "exhausted"
        if self.grants:
            return "granted"
        return "waiting" if self.asked else "idle"

    @property
    def error(self) -> SessionError | None:
        """The error of the coordinator's refusal, if any."""
        return None if self.refusal is None else error_of(self.refusal)

    @property
    def answered(self) -> bool:
        """Whether waiting for a grant is over."""
        return bool(self.grants) or self.rolled_back or self.stop is not None or self.refusal is not None

    def after(self, ticket: int) -> Grant | None:
        """Return the newest grant if it is later than that of `ticket` and not cancelled."""
        newest = self.newest
        if newest is None or newest.ticket <= ticket or newest.ticket in self.void:
            return None
        return newest

    def _require(self, action: str, ticket: int | None = None) -> None:
        """Raise IllegalInput, or the error of a refusal, if the state does not allow the action."""
        if self.refusal is not None:
            raise error_of(self.refusal)
        state = self.work
        in_hand = self.exchanged if state == "committing" else self.held
        if state not in LEGAL[action] or ticket not in (None, in_hand):
            raise illegal(action, ticket, state, in_hand)

    # Inputs of the training loop

    def ready(self) -> Requests:
        """Ask for the next ticket, unless that was done. Gives up a cancelled ticket in hand."""
        if (self.stop is not None and self.refusal is None) or self.rolled_back:
            return []
        # A fast test for what `LEGAL` says, because every step asks.
        if (
            self.held is not None
            or self.exhausted
            or self.refusal is not None
            or self.exchanged in self.pending.commits
        ):
            self._require("ready")
        self.held = self.exchanged = None
        if self.asked or self.grants:
            return []
        self.asked = True
        return [Ready()]

    def take_grant(self) -> Grant | None:
        """Return the received grant, whose ticket is in hand from now on. None: the job has stopped."""
        if self.stop is not None and self.refusal is None:
            return None
        if self.held is not None or self.exhausted or not self.grants or self.refusal is not None:
            self._require("take_grant")
        grant = self.grants.popleft()
        self.held, self.exchanged = grant.ticket, None
        return grant

    def ready_ahead(self, ticket: int) -> Requests:
        """Ask for the next ticket while `ticket` is worked on, unless that is granted or of no use.

        Legal in every state, because the thread that asks need not know the training loop's.
        """
        over = self.stop is not None or self.refusal is not None or self.exhausted
        if over or self.after(ticket) is not None:
            return []
        self.asked_ahead = ticket
        return [Ready(ticket)]

    def begin_commit(self, commit: Commit) -> Commit:
        """Return the commit of the ticket in hand that an exchange will carry.

        It does not ask for a ticket that was granted ahead, nor for one that was asked for and will be, as the one
        before: its version would come twice. Its answer goes to `receive`; if none comes, `commit` or `rollback_commit`
        follows.
        """
        if self.held != commit.ticket or self.refusal is not None:
            self._require("begin_commit", commit.ticket)
        if commit.ready and (self.grants or (self.granted_ahead and self.asked_ahead == commit.ticket)):
            # If the policy grants nothing ahead this time, `ready` asks once more.
            commit = replace(commit, ready=False)
        self.held, self.exchanged, self.asked = None, commit.ticket, commit.ready
        self.in_exchange = True
        self.pending.commit(commit)
        self._use(commit)
        return commit

    def end_exchange(self) -> None:
        """Note that the answer to a commit is here: the events in it follow."""
        self.in_exchange = False

    def rollback_commit(self, ticket: int) -> None:
        """Take the ticket in hand again, because the exchange was refused before the commit was made.

        It is cancelled if the session stream has delivered its fate meanwhile.
        """
        if ticket != self.exchanged:
            self._require("rollback_commit", ticket)
        if ticket in self.pending.commits:
            self.pending.withdraw(ticket)
        else:
            self.void.setdefault(ticket, "it was settled while its payload was on the way")
        self.position.rollback()
        self.held, self.exchanged, self.asked, self.in_exchange = ticket, None, False, False

    def commit(self, commit: Commit) -> Requests:
        """Commit the payload of the ticket in hand.

        A commit that an exchange carried is not sent again if the stream has answered it. Nor is the commit of a ticket
        that was cancelled meanwhile, which `dispositions` reports. In both cases the commit's `ready` is sent alone.
        Raises Voided if another membership has begun: the ticket's batches have to be worked on again.
        """
        ticket, self.in_exchange = commit.ticket, False
        if ticket == self.forfeited and self.refusal is None:
            if ticket == self.exchanged:
                self.rollback_commit(ticket)
            raise Voided(
                f"ticket {ticket} was cancelled: {self.void.get(ticket, 'it is another membership')}"
            )
        if ticket != self.held or self.refusal is not None:
            if ticket == self.exchanged and ticket not in self.pending.commits and self.refusal is None:
                # The answer may be the fate of a cancelled ticket, which the exchange never reached, so that its
                # `ready` is still due. Asking twice gives one ticket.
                self.exchanged = None
                return [Ready()] if self.asked else []
            self._require("commit", ticket)
        self.held = None
        if commit.ready and self.grants:
            commit = replace(commit, ready=False)
        if ticket in self.void and ticket != self.exchanged:
            self.pending.cancelled(ticket)
            return self.ready() if commit.ready else []
        self.asked, self.exchanged = commit.ready, None
        self._use(commit)
        if not self.lossless_link:
            self.pending.commit(commit)
        return [commit]

    def _use(self, commit: Commit) -> None:
        self.position.commit(None if self._initialises(commit.ticket) else commit.batch)

    def _initialises(self, ticket: int | None) -> bool:
        """Whether the newest grant says that the ticket is for initial values."""
        newest = self.newest
        return newest is not None and newest.initialise and newest.ticket == ticket

    def abandon(self, ticket: int, reason: str, *, unit_ends: bool = False) -> Requests:
        """Give the ticket in hand back. Sends nothing for a cancelled ticket."""
        self._require("abandon", ticket)
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
        self._require("done")
        if self.rolled_back:
            return []
        self.held = self.exchanged = None
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
        """Take an event of the session stream, or of an exchange's answer."""
        match event:
            case Grant():
                # Grants come again after a reconnection.
                newest = self.newest
                if newest is None or event.ticket > newest.ticket:
                    if self.held is not None or self.in_exchange:
                        self.granted_ahead = True
                    elif newest is not None and self.asked_ahead == newest.ticket:
                        self.granted_ahead = False
                    self.newest, self.asked = event, False
                    self.grants.append(event)
                    if self.void:
                        kept = (self.held, self.exchanged)
                        self.void = {void: why for void, why in self.void.items() if void in kept}
            case Disposition():
                self.pending.settle(event)
            case Cancel():
                self._cancelled(event)
            case Stop():
                self.stop = event
            case Refusal():
                self.refusal = event
                if not event.fatal:
                    self.pending.withdraw(event.ticket)
            case _:
                assert_never(event)

    def owed(self) -> Requests:
        """Return what may not have been received, to be sent first on a new stream."""
        requests = self.pending.owed(self.exchanged)
        # Also if a commit above asks, or one in an exchange: asking twice gives one ticket. The grant that an exchange
        # asked for may have been lost with the former stream, and cancelled.
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
        in_hand = self.held if self.held is not None else self.exchanged
        self.void = {} if in_hand is None else {in_hand: reason}
        self.forfeited = None if next_batch is None or self._counts(next_batch) else in_hand
        self.grants.clear()
        self.pending.end(reason)
        undone = 0 if next_batch is None else self.position.go_back(next_batch)
        if again:
            self.rolled_back = True
            self.asked = self.exhausted = False
        return undone

    def _counts(self, next_batch: int) -> bool:
        """Whether the ticket in hand was committed by an exchange whose answer was lost, or is no batch."""
        made = self.pending.commits.get(self.exchanged or 0)
        in_hand = self.held if self.held is not None else self.exchanged
        initialises = self._initialises(in_hand)
        if self.held is None and self.exchanged is not None and made is None:
            # The stream has delivered its fate, or an earlier membership has ended. It is the last batch that was used,
            # so it counts if all do; a ticket that was forfeited once counts no more.
            return initialises or (in_hand != self.forfeited and not self.undone(next_batch))
        return initialises or (made is not None and made.batch < next_batch)

    def undone(self, next_batch: int) -> int:
        """How many batches were committed from that one on."""
        return self.position.undone(next_batch)

    def take_rollback(self) -> bool:
        """Return, once, whether the loop has to begin again, and then give up the ticket in hand."""
        found, self.rolled_back = self.rolled_back, False
        if found:
            self.held = self.exchanged = None
        return found

    def dispositions(self) -> list[Disposition]:
        """Return the final fates of commits since the last call, each once."""
        return self.pending.take_dispositions()

    def _cancelled(self, cancel: Cancel) -> None:
        self.void[cancel.ticket] = cancel.reason
        # A ticket that was granted ahead is not begun.
        self.grants = deque(grant for grant in self.grants if grant.ticket != cancel.ticket)
        self.pending.abandons.pop(cancel.ticket, None)
