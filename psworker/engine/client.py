"""The client's half of the session protocol as a state machine.

What the training loop has in hand decides what it may do: `psworker.engine.legal` has the table.

A ticket that is rolled back is cancelled if a `Cancel` came meanwhile.

The session stream may answer a commit that an exchange carries before the exchange ends. Then nothing is in hand, and
the loop, which does not know it yet, may still say one thing about that ticket, once and before `ready` or `done`:
`commit`, which sends no more than the `Ready` that is due, or `rollback_commit`, after which it is cancelled.

`receive` takes every event in every state. A `Grant` ends waiting; a `Cancel` of the ticket in hand leads from working
to cancelled, of one that was granted ahead takes that away; the `Disposition` of a commit in the making ends
committing. After a `Stop` the loop may finish what it has in hand; `ready` and `take_grant` bring nothing. After a
`Refusal` the inputs of the table raise what it says, but for `rollback_commit`, which sends nothing and is part of
handling the exchange's own error.

`ready_ahead`, `report` and `leave` are legal in every state. `ready_ahead` brings nothing after a `Stop` or `Refusal`.
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

    A message that is not answered stays in `owed`, to be sent again on a new stream: the coordinator counts it once.
    Only a `Report` is sent once and never again: nothing depends on it.
    `lossless_link`: the link delivers every message sooner or later, whatever breaks; then nothing is owed, and the
    dispositions of commits need not be received. One thread at a time may use an engine.
    """

    def __init__(self, *, lossless_link: bool = False) -> None:
        self.lossless_link = lossless_link
        self.stop: Stop | None = None
        self.refusal: Refusal | None = None
        # Ready was sent since the newest grant, alone or with a commit.
        self.asked = False
        # Done was sent.
        self.exhausted = False
        # Why the whole job is to end, as Done said it.
        self.ends = ""
        # The ticket in hand: granted to the training loop, and neither committed nor abandoned by it.
        self.held: int | None = None
        # Granted, and not yet in hand.
        self.grants: deque[Grant] = deque()
        # Why tickets are void that were granted; forgotten when a later one is granted, but for the one in hand
        # or in an exchange.
        self.void: dict[int, str] = {}
        self.leaving: Leave | None = None
        # The newest that was received; None before the first.
        self.newest: Grant | None = None
        # The last ticket whose commit an exchange carried: only the exchange knows whether it was made.
        self.exchanged: int | None = None
        self.pending = Pending()
        self.position = Position()
        # In hand when the membership ended: it can be worked on again under another ticket.
        self.forfeited: int | None = None
        # The loop is to begin again at the first batch that is not committed, and does not know yet.
        self.rolled_back = False

    # State

    @property
    def work(self) -> WorkState:
        """What the training loop has in hand."""
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
        """What the coordinator's refusal stands for."""
        return None if self.refusal is None else error_of(self.refusal)

    @property
    def answered(self) -> bool:
        """Somebody who waits for a grant need not wait any longer."""
        return bool(self.grants) or self.rolled_back or self.stop is not None or self.refusal is not None

    def after(self, ticket: int) -> Grant | None:
        """The newest grant, if it is a later one than that of `ticket`, and was not cancelled."""
        newest = self.newest
        if newest is None or newest.ticket <= ticket or newest.ticket in self.void:
            return None
        return newest

    def _require(self, action: str, ticket: int | None = None) -> None:
        """Raises IllegalInput, and what a refusal stands for."""
        if self.refusal is not None:
            raise error_of(self.refusal)
        state = self.work
        in_hand = self.exchanged if state == "committing" else self.held
        if state not in LEGAL[action] or ticket not in (None, in_hand):
            raise illegal(action, ticket, state, in_hand)

    # Inputs of the training loop

    def ready(self) -> Requests:
        """Ask for the next ticket, unless that was done. A ticket in hand that was cancelled is forgotten."""
        if (self.stop is not None and self.refusal is None) or self.rolled_back:
            return []
        # What `LEGAL` says, seen at a glance: it is asked at every step.
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
        """The grant that came, which is the ticket in hand from now on. None: the job has stopped."""
        if self.stop is not None and self.refusal is None:
            return None
        if self.held is not None or self.exhausted or not self.grants or self.refusal is not None:
            self._require("take_grant")
        grant = self.grants.popleft()
        self.held, self.exchanged = grant.ticket, None
        return grant

    def ready_ahead(self, ticket: int) -> Requests:
        """Ask for the next ticket while `ticket` is worked on; nothing if that one is here, or not wanted.

        Legal in every state: the thread that asks need not know how far the training loop is.
        """
        over = self.stop is not None or self.refusal is not None or self.exhausted
        return [] if over or self.after(ticket) is not None else [Ready(ticket)]

    def begin_commit(self, commit: Commit) -> Commit:
        """An exchange will carry this commit of the ticket in hand: the commit to make, which asks for nothing that
        was granted ahead. Its answer is received like all events; if none comes, `commit` or `rollback_commit`
        follows."""
        if self.held != commit.ticket or self.refusal is not None:
            self._require("begin_commit", commit.ticket)
        if commit.ready and self.grants:
            commit = replace(commit, ready=False)
        self.held, self.exchanged, self.asked = None, commit.ticket, commit.ready
        self.pending.commit(commit)
        self._use(commit)
        return commit

    def rollback_commit(self, ticket: int) -> None:
        """The exchange was refused before the commit was made: the ticket is in hand again, or cancelled if the
        session stream has told its fate meanwhile."""
        if ticket != self.exchanged:
            self._require("rollback_commit", ticket)
        if ticket in self.pending.commits:
            self.pending.withdraw(ticket)
        else:
            self.void.setdefault(ticket, "it was settled while its payload was on the way")
        self.position.rollback()
        self.held, self.exchanged, self.asked = ticket, None, False

    def commit(self, commit: Commit) -> Requests:
        """The payload of the ticket in hand counts from now on.

        A commit that an exchange carried is not sent again when the stream has answered it. A ticket that was
        cancelled meanwhile has nothing to commit to, which `dispositions` says. In both cases the commit's `ready` is
        sent alone.
        Raises Voided where another membership has begun: the ticket's batches are to be worked on again.
        """
        ticket = commit.ticket
        if ticket == self.forfeited and self.refusal is None:
            if ticket == self.exchanged:
                self.rollback_commit(ticket)
            raise Voided(
                f"ticket {ticket} was cancelled: {self.void.get(ticket, 'it is another membership')}"
            )
        if ticket != self.held or self.refusal is not None:
            if ticket == self.exchanged and ticket not in self.pending.commits and self.refusal is None:
                # The answer may be the fate of a cancelled ticket, which the exchange never reached: then nobody has
                # asked yet. Asking twice gives one ticket.
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
        """The ticket is for initial values, as far as the newest grant says."""
        newest = self.newest
        return newest is not None and newest.initialise and newest.ticket == ticket

    def abandon(self, ticket: int, reason: str, *, unit_ends: bool = False) -> Requests:
        """Give the ticket in hand back; nothing to send for one that was cancelled."""
        self._require("abandon", ticket)
        self.held = None
        if self.void.pop(ticket, None) is not None:
            return []
        abandon = Abandon(ticket, reason, unit_ends)
        if not self.lossless_link:
            self.pending.abandons[ticket] = abandon
        return [abandon]

    def done(self, ends: str = "") -> Requests:
        """There is no more data here, or, with a reason, the whole job is to end. The coordinator abandons a ticket
        that is in hand."""
        self._require("done")
        if self.rolled_back:
            return []
        self.held = self.exchanged = None
        if self.exhausted:
            return []
        self.exhausted, self.ends = True, ends
        return [Done(ends)]

    def report(self, version: int, metrics: Mapping[str, float]) -> Requests:
        """Metrics of the final version."""
        return [Report(version, dict(metrics))]

    def leave(self, reason: str) -> Requests:
        """The session ends: the last message."""
        self.leaving = Leave(reason)
        return [self.leaving]

    # Inputs of the link

    def receive(self, event: Event) -> None:
        """An event of the session stream, or of an exchange's answer."""
        match event:
            case Grant():
                # After a reconnection grants come again.
                newest = self.newest
                if newest is None or event.ticket > newest.ticket:
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
        """What may not have been received: to be sent first on a new stream."""
        requests = self.pending.owed(self.exchanged)
        # Also when a commit above asks, or one in an exchange: asking twice gives one ticket. What an exchange asked
        # for may have been granted on the former stream, lost with it, and cancelled.
        if self.asked:
            requests.append(Ready())
        if self.exhausted:
            requests.append(Done(self.ends))
        if self.leaving is not None:
            requests.append(self.leaving)
        return requests

    def renew(self, reason: str, next_batch: int | None = None, *, again: bool = False) -> int:
        """The session goes on as a new member, because the coordinator had given the former one up, or went back to a
        checkpoint: tickets are void, and commits without a fate have an unknown one.

        `next_batch`: the first batch that does not count as committed; None: batches have no numbers. `again`: the loop
        is to begin there. Returns how many batches were committed that do not count.
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
        """What is in hand was committed by an exchange whose answer was lost; or it is no batch."""
        made = self.pending.commits.get(self.exchanged or 0)
        in_hand = self.held if self.held is not None else self.exchanged
        initialises = self._initialises(in_hand)
        if self.held is None and self.exchanged is not None and made is None:
            # The stream has told its fate already, or a membership before this one has ended. It is the last batch that
            # was used, so it counts where all do; what has been given up once is not counted any more.
            return initialises or (in_hand != self.forfeited and not self.undone(next_batch))
        return initialises or (made is not None and made.batch < next_batch)

    def undone(self, next_batch: int) -> int:
        """How many batches were committed from that one on."""
        return self.position.undone(next_batch)

    def take_rollback(self) -> bool:
        """The loop is to begin again since the last call; what is in hand is given up."""
        found, self.rolled_back = self.rolled_back, False
        if found:
            self.held = self.exchanged = None
        return found

    def dispositions(self) -> list[Disposition]:
        """What became of commits since the last call; each final one once."""
        return self.pending.take_dispositions()

    def _cancelled(self, cancel: Cancel) -> None:
        self.void[cancel.ticket] = cancel.reason
        # One that was granted ahead is not begun.
        self.grants = deque(grant for grant in self.grants if grant.ticket != cancel.ticket)
        self.pending.abandons.pop(cancel.ticket, None)
