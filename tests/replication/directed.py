"""Schedules for what chance seldom meets: promises that were not on the disk when power failed, duels of candidates.

Servers 0 and 1 have copies, the others vote. Each schedule has two candidates; an item that becomes stable under one
must be in the log of any that begins a later epoch.
"""

from collections.abc import Callable

from psserver.replication import first_config
from psserver.replication.messages import (
    Input,
    Message,
    Offer,
    Prepare,
    Promise,
    Propose,
    Receive,
    Stand,
    Sync,
)
from tests.replication.model import Copy, Local, Violation, crashed, started, step, unique_epochs


class Servers:
    """Servers whose messages go where the schedule says."""

    def __init__(self, servers: int = 3) -> None:
        config = first_config((0, 1))
        self.local: list[Local] = [started(server, servers, config) for server in range(servers)]
        self.sent: list[tuple[int, int, Message | Copy]] = []
        self.stable: list[tuple[int, tuple[object, ...]]] = []

    def give(self, server: int, given: Input | Copy, *, torn: bool = False) -> None:
        """Give an input. `torn`: the power fails before the first write to the disk that follows something sent."""
        done = step(self.local[server], given)
        self.local[server], count = done.local, len(done.sent)
        if torn:
            self.local[server], count = done.torn[0] if done.torn else (crashed(done.local), count)
        unique_epochs(each.disk for each in self.local)
        self.sent += [(server, to, message) for to, message in done.sent[:count]]
        if done.activated is not None and any(
            epoch < done.activated.epoch and done.local.log[: len(items)] != items
            for epoch, items in self.stable
        ):
            raise Violation(f"epoch {done.activated.epoch} begins without what is stable")
        if done.local.replica.leads:
            self.stable.append((done.local.replica.synced, done.local.stable))

    def deliver(self, sender: int, to: int, *kinds: type, torn: bool = False) -> None:
        """Deliver what was sent so far from one server to another, in order; of these kinds where any are given."""
        for mail in list(self.sent):
            if mail[:2] == (sender, to) and (not kinds or isinstance(mail[2], kinds)):
                self.sent.remove(mail)
                content = mail[2]
                self.give(to, content if isinstance(content, Copy) else Receive(sender, content), torn=torn)

    def exchange(self, one: int, other: int) -> None:
        """Let two servers talk until they have nothing to say."""
        while any({mail[0], mail[1]} == {one, other} for mail in self.sent):
            self.deliver(one, other)
            self.deliver(other, one)

    def crash(self, server: int) -> None:
        self.local[server] = crashed(self.local[server])

    def sealed(self, server: int) -> bool:
        return self.local[server].replica.disk.promised > 0

    def hold(self, sender: int, to: int) -> Message:
        """Take the only message from one server to another out of the network."""
        (mail,) = [mail for mail in self.sent if mail[:2] == (sender, to)]
        self.sent.remove(mail)
        assert not isinstance(mail[2], Copy)
        return mail[2]

    def leads(self, server: int) -> bool:
        replica = self.local[server].replica
        return replica.leads and not replica.sealed


def promise_of_a_witness(torn: bool) -> None:
    """Server 2 promises epoch 4 to server 1 and dies. Server 0, with the lower epoch 3, must not get its vote."""
    three = Servers()
    three.give(1, Stand(above=1))
    three.deliver(1, 2, Prepare, torn=torn)
    if not torn:
        three.crash(2)
    three.deliver(2, 1, Promise)
    three.give(0, Stand())
    three.exchange(0, 2)
    if three.leads(0):
        three.give(0, Offer("item"))
    three.exchange(1, 2)
    if not (three.leads(1) or three.leads(0)):
        raise Violation("nobody leads")


def promise_of_a_candidate(torn: bool) -> None:
    """Server 1 takes over with server 2's help and dies. Nobody has a copy in sync but the members that it named."""
    three = Servers()
    three.give(1, Stand(above=1))
    three.deliver(1, 2, Prepare)
    three.deliver(2, 1, Promise, torn=torn)
    three.exchange(1, 2)
    three.give(1, Offer("item"))
    three.give(0, Stand(above=4))
    three.exchange(0, 2)
    three.exchange(0, 1)
    if three.leads(0):
        three.give(0, Offer("other"))


def configuration_of_a_voter(torn: bool) -> None:
    """Server 2 accepts that server 1 leads alone, and dies. Then it must still know, for server 0 was left out."""
    three = Servers()
    three.give(1, Stand(above=1))
    three.deliver(1, 2, Prepare)
    three.deliver(2, 1, Promise)
    three.deliver(1, 2, torn=torn)
    if not torn:
        three.crash(2)
    three.deliver(2, 1)
    if three.leads(1):
        three.give(1, Offer("item"))
    three.give(0, Stand(above=4))
    three.exchange(0, 2)
    if three.leads(0) and three.leads(1):
        three.give(0, Offer("other"))


def acceptance_below_a_promise(torn: bool) -> None:
    """Server 2 promises epoch 3 to server 0, then 4 to server 1, and only then hears what server 0 proposes."""
    three = Servers()
    three.give(0, Stand())
    three.deliver(0, 2, Prepare)
    three.deliver(2, 0, Promise)
    three.give(1, Stand(above=3))
    three.deliver(1, 2, Prepare, torn=torn)
    three.deliver(0, 2)
    three.deliver(2, 0)
    if three.leads(0):
        three.give(0, Offer("item"))
    three.deliver(2, 1)
    three.exchange(1, 2)


def halves(torn: bool) -> None:
    """Of four servers each copy has one other on its side. Neither side may go on alone."""
    four = Servers(4)
    four.give(0, Stand())
    four.exchange(0, 2)
    if four.leads(0):
        four.give(0, Offer("item"))
    four.give(1, Stand(above=4))
    if torn:
        four.crash(3)
    four.exchange(1, 3)
    if four.sealed(0) or four.sealed(1):
        raise Violation("a candidate without a majority has sealed itself")


def attempt_after_a_higher_promise(torn: bool) -> None:
    """Server 0 has made server 1 equal, and has not heard so when it promises and accepts that server 1 leads alone."""
    three = Servers()
    three.give(0, Stand((1,)))
    three.deliver(0, 1, Prepare)
    three.deliver(1, 0, Promise)
    three.deliver(0, 1, Sync)
    late = three.hold(1, 0)
    three.give(1, Stand())
    for sender, to in ((1, 0), (0, 1)):
        three.deliver(sender, to, Prepare, Promise)
    three.deliver(1, 0, Propose)
    three.deliver(0, 1)
    three.give(1, Offer("item"))
    three.give(0, Receive(1, late))
    three.exchange(0, 2)
    if torn:
        three.crash(2)
    three.give(0, Stand(above=7))
    three.exchange(0, 2)


def old_items_in_a_new_log(torn: bool) -> None:
    """Server 1 leads alone when items of server 0's former epoch arrive."""
    three = Servers()
    three.give(0, Offer("never stable"))
    late = three.hold(0, 1)
    three.give(1, Stand())
    three.exchange(1, 2)
    three.give(1, Receive(0, late))
    if torn:
        three.crash(2)
    if not three.leads(1) or three.local[1].log:
        raise Violation("an old epoch's item is in a new epoch's log")


def repeated_sync(torn: bool) -> None:
    """The message that made server 1 equal comes once more when the new epoch has gone on."""
    three = Servers()
    three.give(0, Stand((1,)))
    three.deliver(0, 1, Prepare)
    three.deliver(1, 0, Promise)
    late = three.hold(0, 1)
    three.give(1, Receive(0, late))
    three.exchange(0, 1)
    three.give(0, Offer("item"))
    three.exchange(0, 1)
    three.give(1, Receive(0, late))
    if torn:
        three.crash(0)
    three.give(1, Stand(above=3))
    three.exchange(1, 2)


def same_vote_twice(torn: bool) -> None:
    """Server 2 is asked by both candidates at once, and then hears what both propose."""
    three = Servers()
    for candidate in (0, 1):
        three.give(candidate, Stand())
        three.deliver(candidate, 2, Prepare)
    for candidate in (0, 1):
        three.deliver(2, candidate)
    if torn:
        three.crash(2)
    three.exchange(0, 2)
    three.exchange(1, 2)


SCHEDULES: tuple[Callable[[bool], None], ...] = (
    promise_of_a_witness,
    promise_of_a_candidate,
    configuration_of_a_voter,
    acceptance_below_a_promise,
    halves,
    attempt_after_a_higher_promise,
    old_items_in_a_new_log,
    repeated_sync,
    same_vote_twice,
)
