"""Random schedules against the real coordinator: delay, repetition, broken lines, deaths, returns, strangers.

Choices are drawn from a `Dice`, so that a seeded generator and a search for
the smallest failing schedule drive the same scenes.
"""

import random
from collections.abc import Mapping
from typing import Protocol

from psserver.coordinator import Coordinator, JobTerms, JoinRefused, Output, Record, Tell
from psserver.coordinator.outputs import RefusalNotice
from psserver.coordinator.status import report
from psserver.policies import build
from tests.coordinator.client import Client, Message
from tests.coordinator.invariants import Guard

TIMEOUT = 3.0
NOBODY = "w9"


class Dice(Protocol):
    def pick(self, n: int) -> int:
        """One of 0 .. n - 1."""
        ...


class Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, n: int) -> int:
        # Fast enough, and even enough for n far below 2 ** 16.
        return self._random.getrandbits(16) * n >> 16


class Tape:
    """Choices from a list; when it ends, always the first: the calmest."""

    def __init__(self, choices: list[int]) -> None:
        self._choices = iter(choices)

    def pick(self, n: int) -> int:
        return next(self._choices, 0) % n


class Schedule:
    """One job from its first worker to its stop. `log` are its records."""

    def __init__(self, policy: str, knobs: Mapping[str, object], dice: Dice, *, workers: int = 3) -> None:
        self.dice = dice
        self.now = 0.0
        terms = JobTerms(job="j", optimizer={"name": "sgd"}, workers=workers, worker_timeout=TIMEOUT)
        machine = build(policy, knobs, workers)
        self.guard = Guard(policy, machine.knobs)
        self.coordinator = Coordinator(terms, machine, self.now)
        self.log: list[Record] = []
        self.clients = {f"w{n}": Client(f"w{n}", batches=dice.pick(5)) for n in range(workers)}
        if not any(client.batches for client in self.clients.values()):
            self.clients["w0"].batches = 1
        self.take(self.coordinator.opening())
        self.names = list(self.clients)

    def take(self, outputs: list[Output]) -> list[Output]:
        """Outputs take effect: the log is guarded, notices are on their way."""
        for output in outputs:
            if isinstance(output, Record):
                self.log.append(output)
                self.guard.read(output)
            elif (client := self.clients.get(output.worker)) and client.incarnation == output.incarnation:
                if client.connected:
                    client.down.append(output.notice)
        self.guard.compare(self.coordinator)
        return outputs

    # Scenes

    def run(self, steps: int) -> None:
        """So many random scenes, then the calm in which everything must come to its end."""
        pick = self.dice.pick
        for _ in range(steps):
            self.scene(self.clients[self.names[pick(len(self.names))]], pick(64))
            if self.coordinator.stopped is not None:
                break
        self.calm()

    def scene(self, client: Client, chance: int) -> None:
        if chance < 50:
            self.proceed(client)
        elif chance < 52:
            self.repeat(client)
        elif chance < 54:
            self.hostile(client)
        elif chance < 56:
            self.cut(client)
        elif chance == 56:
            self.kill(client)
        elif chance == 57:
            self.goodbye(client)
        elif chance < 61:
            self.wait(0.2 * self.dice.pick(4))
        elif chance == 61:
            self.wait(TIMEOUT)
        else:
            self.again(client)

    def proceed(self, client: Client) -> None:
        """Whatever comes next for this worker: a message arrives, a notice arrives, or it computes."""
        if not client.alive or not client.connected:
            if not client.gone and not client.fatal:
                self.connect(client)
            return
        way = self.dice.pick(3)
        if client.up and (way == 0 or not (client.down or client.can_move)):
            self.deliver(client, client.up.popleft())
        elif client.down and (way == 1 or not client.can_move):
            client.hear()
        elif client.can_move:
            client.move(mood=self.dice.pick(16) == 15, ready=self.dice.pick(4) != 3)

    def deliver(self, client: Client, message: Message) -> None:
        coordinator, who, now = self.coordinator, (client.worker, client.incarnation), self.now
        match message:
            case ("ready",):
                outputs = coordinator.ready(*who, now)
            case ("done",):
                outputs = coordinator.done(*who, now)
            case ("abandon", ticket):
                outputs = coordinator.abandon(*who, ticket, "mood", now)
            case ("commit", ticket, batch, ready):
                outputs = coordinator.commit(*who, ticket, now, batch=batch, samples=1, loss=0.5, ready=ready)
            case _:
                raise ValueError(message)
        refused = [o for o in outputs if isinstance(o, Tell) and isinstance(o.notice, RefusalNotice)]
        # A line that was superseded or given up may still carry a message; an honest one is never refused.
        present = coordinator.roster.present.get(client.worker)
        assert not refused or present is None or present.incarnation != client.incarnation, refused
        self.take(outputs)

    def connect(self, client: Client) -> None:
        """Join and open a line: as a new process, after a broken line, or after having been given up."""
        coordinator = self.coordinator
        if not client.alive:
            client.restart(coordinator.roster.tally(client.worker).next_batch)
        session, rank = f"{client.worker}-{client.session}", int(client.worker[1:])
        try:
            member, outputs = coordinator.join(client.worker, session, rank, self.now)
        except JoinRefused:
            # Only a process of which the job knows nothing is sent away.
            assert coordinator.stopped is not None
            assert all(member.session != session for member in coordinator.roster.present.values())
            client.fatal = "the job is over"
            return
        self.take(outputs)
        known = client.incarnation == member.incarnation
        client.incarnation, client.connected = member.incarnation, True
        self.take(coordinator.connect(client.worker, member.incarnation, session, self.now))
        if known:
            client.resume()
        else:
            client.renew()

    def cut(self, client: Client) -> None:
        """The line breaks; the process does not notice at once."""
        if client.connected:
            client.hang_up()
            self.take(self.coordinator.disconnect(client.worker, client.incarnation, self.now))

    def kill(self, client: Client) -> None:
        """The process dies. Its line may take a while to break. Somebody always survives."""
        client.alive = False
        # One that never joined is waited for: the start is for all.
        others = sum(not c.gone for c in self.clients.values()) > 1
        client.gone = self.dice.pick(3) == 2 and others and client.incarnation >= 0
        if client.gone or self.dice.pick(2):
            self.cut(client)

    def goodbye(self, client: Client) -> None:
        if client.connected and not client.finished:
            client.hang_up()
            client.alive = False
            self.take(self.coordinator.leave(client.worker, client.incarnation, "had enough", self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.coordinator.tick(self.now))

    def again(self, client: Client) -> None:
        """The same process joins once more: nothing changes."""
        member = self.coordinator.roster.present.get(client.worker)
        if member is not None and self.coordinator.stopped is None:
            before = self.coordinator.entries
            same, outputs = self.coordinator.join(client.worker, member.session, member.rank, self.now)
            assert same is member and not outputs and self.coordinator.entries == before

    def repeat(self, client: Client) -> None:
        """A message of the past arrives again: it is answered, and counts for nothing."""
        settled = self.coordinator.tickets.recent_of(client.worker)
        member = self.coordinator.roster.present.get(client.worker)
        if not settled or member is None:
            return
        ticket = settled[self.dice.pick(len(settled))]
        before = self.coordinator.entries
        who, now = (client.worker, member.incarnation), self.now
        if self.dice.pick(2):
            outputs = self.coordinator.commit(*who, ticket.number, now, samples=5, loss=9.0)
            assert [o.notice for o in outputs if isinstance(o, Tell)] == [ticket.fate]
        else:
            outputs = self.coordinator.abandon(*who, ticket.number, "late", now)
            assert outputs == []
        assert self.coordinator.entries == before
        self.guard.compare(self.coordinator)

    # Strangers and liars

    def hostile(self, client: Client) -> None:
        """Everything that must be refused is refused, told, and changes nothing at all."""
        coordinator, pick = self.coordinator, self.dice.pick
        member = coordinator.roster.present.get(client.worker)
        incarnation = member.incarnation if member else client.incarnation
        foreign = [t.number for t in coordinator.tickets.live.values() if t.worker != client.worker]
        ticket = foreign[pick(len(foreign))] if foreign and pick(2) else 10**6 + pick(3)
        worker = (client.worker, NOBODY)[pick(2)] if member else client.worker
        if pick(2) or member is None:
            incarnation += 1 + pick(2)
        before = state(coordinator)
        match pick(4):
            case 0 if worker == NOBODY or member is None or incarnation != member.incarnation:
                outputs = coordinator.ready(worker, incarnation, self.now)
            case 1 if worker == NOBODY or member is None or incarnation != member.incarnation:
                outputs = coordinator.done(worker, incarnation, self.now)
            case 2:
                outputs = coordinator.abandon(worker, incarnation, ticket, "lie", self.now)
            case _:
                outputs = coordinator.commit(worker, incarnation, ticket, self.now, samples=10**6)
        assert len(outputs) == 1 and isinstance(outputs[0], Tell)
        assert isinstance(outputs[0].notice, RefusalNotice) and outputs[0].notice.message
        assert state(coordinator) == before

    # The end

    def calm(self) -> None:
        """Nothing goes wrong any more. All but the lost come back and work on: the job must end in success."""
        for client in self.clients.values():
            client.fatal = ""
        for _ in range(400):
            if self.coordinator.stopped is not None:
                break
            for client in self.clients.values():
                if not client.gone:
                    self.settle(client)
            self.wait(0.4)
        self.ended()

    def settle(self, client: Client) -> None:
        """Everything that this worker can do now, without delay."""
        if not (client.alive and client.connected):
            self.connect(client)
        while client.up or client.down or client.can_move:
            if client.up:
                self.deliver(client, client.up.popleft())
            elif client.down:
                client.hear()
            else:
                client.move(mood=False, ready=True)

    def ended(self) -> None:
        stopped = self.coordinator.stopped
        assert stopped is not None, "the job does not end"
        if self.coordinator.initialised:
            assert (stopped.success, stopped.cause) == (True, "done"), stopped
        else:
            # All that had any data were lost before they could bring a model.
            assert (stopped.success, stopped.cause) == (False, "empty"), stopped
        assert self.guard.stopped
        for client in self.clients.values():
            if not client.gone and not client.fatal:
                self.settle(client)
                assert client.stop is not None or client.fatal, "it never hears of the end"
        for tally in self.coordinator.roster.tallies.values():
            assert tally.committed == tally.applied + tally.dropped
        picture = report(self.coordinator, self.now)
        assert (picture.pending, picture.applied) == (0, self.guard.applied.total())


def state(coordinator: Coordinator) -> str:
    """All that a coordinator remembers, as text."""
    c = coordinator
    people = (c.roster.present, c.roster.tallies, c.roster.unfinished)
    tickets = (c.tickets.next_number, c.tickets.live, c.tickets.settled)
    rest = (c.version, c.initialised, c.started, c.stopped, c.loss, c.entries, vars(c.policy))
    return repr((people, tickets, rest))
