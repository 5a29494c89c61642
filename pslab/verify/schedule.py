"""Random schedules against the real coordinator: delay, repetition, broken lines, deaths, returns, strangers.

Choices are drawn from a `Dice`, so that a seeded generator and a search for
the smallest failing schedule drive the same scenes.
"""

from collections.abc import Mapping

from pslab.verify.breach import Breach, expect
from pslab.verify.client import Client, Message
from pslab.verify.dice import Dice
from pslab.verify.invariants import Guard
from pslab.verify.patience import Patient
from pslab.verify.servers import Servers
from psserver.coordinator import Coordinator, JobTerms, JoinRefused, Output, Record, Tell
from psserver.coordinator.outputs import RefusalNotice
from psserver.coordinator.status import report
from psserver.policies import build

TIMEOUT = 3.0
NOBODY = "w9"


class Schedule:
    """One job from its first worker to its stop. `log` are its records, `acts` what the policy's world did.

    Acts are lines of a golden trace; messages that the coordinator answers without hearing the policy are not
    among them. With `servers` a shard executes the log, and payloads wait for their turn.
    """

    def __init__(
        self,
        policy: str,
        knobs: Mapping[str, object],
        dice: Dice,
        *,
        workers: int = 3,
        servers: bool = False,
        eager: bool = False,
    ) -> None:
        self.dice = dice
        # Workers ask ahead.
        self.eager = eager
        self.now = 0.0
        terms = JobTerms(job="j", optimizer={"name": "sgd"}, workers=workers, worker_timeout=TIMEOUT)
        self.policy = Patient(build(policy, knobs, workers))
        self.guard = Guard(policy, self.policy.knobs)
        self.coordinator = Coordinator(terms, self.policy, self.now)
        self.servers = Servers(workers=workers, tensors=self.policy.tensors) if servers else None
        self.log: list[Record] = []
        self.acts: list[str] = []
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
                if self.servers is not None:
                    self.servers.execute(output.entry)
            elif (client := self.clients.get(output.worker)) and client.incarnation == output.incarnation:
                if client.connected:
                    client.down.append(output.notice)
        self.guard.compare(self.coordinator)
        if self.servers is not None:
            self.servers.somebody_can_move(self.coordinator)
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
        elif self.eager and client.may_ask_ahead and self.dice.pick(2):
            client.ask_ahead()
        elif client.can_move:
            client.move(mood=self.dice.pick(16) == 15, ready=self.dice.pick(4) != 3)

    def deliver(self, client: Client, message: Message) -> bool:
        """The coordinator hears a message. False: it is a commit whose payload waits to be let in, for later."""
        coordinator, who, now = self.coordinator, (client.worker, client.incarnation), self.now
        match message:
            case ("ready",):
                self._act(client, "ready")
                outputs = coordinator.ready(*who, now)
            case ("ready", holding):
                outputs = coordinator.ready(*who, now, holding=holding)
            case ("done",):
                self._act(client, "done")
                outputs = coordinator.done(*who, now)
            case ("abandon", ticket):
                self._act(client, "abandons", self._named(client, ticket))
                outputs = coordinator.abandon(*who, ticket, "mood", now)
            case ("commit", ticket, batch, ready):
                if self.servers is not None and not self.servers.push(ticket):
                    client.up.appendleft(message)
                    return False
                loss = float("nan") if self.dice.pick(64) == 63 else 0.5
                verb = "commits" if ready else "commits-its-last"
                self._act(client, verb, self._named(client, ticket), "" if loss == loss else "loss=nan")
                outputs = coordinator.commit(
                    *who, ticket, now, batch=batch, samples=8, loss=loss, norm=1.0, ready=ready
                )
            case _:
                raise ValueError(message)
        refused = [o for o in outputs if isinstance(o, Tell) and isinstance(o.notice, RefusalNotice)]
        # A line that was superseded or given up may still carry a message; an honest one is never refused.
        present = coordinator.roster.present.get(client.worker)
        honest = present is not None and present.incarnation == client.incarnation
        expect(not (refused and honest), f"{client.worker} is refused: {refused}")
        self.take(outputs)
        return True

    def _named(self, client: Client, ticket: int) -> str:
        """Nothing for the ticket that it holds: a story says "commits" and means that one."""
        held = [opened.number for opened in self.coordinator.tickets.open_of(client.worker)]
        return "" if held == [ticket] else str(ticket)

    def _act(self, client: Client, *words: str) -> None:
        member = self.coordinator.roster.present.get(client.worker)
        # What another incarnation still says is refused, and no part of the story.
        if words[0] == "joins" or (member is not None and member.incarnation == client.incarnation):
            self.acts.append(" ".join([client.worker, *filter(None, words)]))

    def connect(self, client: Client) -> None:
        """Join and open a line: as a new process, after a broken line, or after having been given up."""
        coordinator = self.coordinator
        if not client.alive:
            client.restart(coordinator.roster.tally(client.worker).next_batch)
        session, rank = name_of(client.session), int(client.worker[1:])
        try:
            member, outputs = coordinator.join(client.worker, session, rank, self.now)
        except JoinRefused:
            # Only a process of which the job knows nothing is sent away.
            present = coordinator.roster.present.get(client.worker)
            known = present is not None and present.session == session
            expect(coordinator.stopped is not None and not known, f"{client.worker} may not join")
            client.fatal = "the job is over"
            return
        self._act(client, "joins", "" if session == name_of(0) else session)
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
            self._act(client, "disconnects")
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
            self._act(client, "leaves")
            self.take(self.coordinator.leave(client.worker, client.incarnation, "had enough", self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.acts.append(f"{seconds!r} seconds pass")
        self.take(self.coordinator.tick(self.now))

    def again(self, client: Client) -> None:
        """The same process joins once more: nothing changes."""
        member = self.coordinator.roster.present.get(client.worker)
        if member is not None and self.coordinator.stopped is None:
            before = self.coordinator.entries
            same, outputs = self.coordinator.join(client.worker, member.session, member.rank, self.now)
            expect(
                same is member and not outputs and self.coordinator.entries == before,
                f"{client.worker} joined once more, and something changed: {outputs}",
            )

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
            told = [o.notice for o in outputs if isinstance(o, Tell)]
            expect(told == [ticket.fate], f"{client.worker} commits {ticket.number} again and hears {told}")
        else:
            outputs = self.coordinator.abandon(*who, ticket.number, "late", now)
            expect(outputs == [], f"{client.worker} abandons {ticket.number}, which is settled: {outputs}")
        expect(self.coordinator.entries == before, "what is settled is decided upon again")
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
        refusals = [o.notice for o in outputs if isinstance(o, Tell) and isinstance(o.notice, RefusalNotice)]
        expect(len(outputs) == len(refusals) == 1, f"a stranger is not refused, once: {outputs}")
        expect(bool(refusals[0].message), "a refusal says nothing")
        expect(state(coordinator) == before, "a stranger's message changed something")

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
                if not self.deliver(client, client.up.popleft()):
                    if not client.down:
                        return  # others are before it
                    client.hear()
            elif client.down:
                client.hear()
            else:
                client.move(mood=False, ready=True)

    def ended(self) -> None:
        stopped = self.coordinator.stopped
        if stopped is None:
            raise Breach("the job does not end, though all workers are here and do what they can")
        if not (stopped.cause == "policy" and stopped.success):
            # Otherwise all that had any data were lost before they could bring a model.
            wanted = (True, "done") if self.coordinator.initialised else (False, "empty")
            expect((stopped.success, stopped.cause) == wanted, stopped.reason)
        expect(not self.guard.complaint, self.guard.complaint)
        expect(self.guard.stopped, "the log does not tell of the stop")
        for client in self.clients.values():
            if not client.gone and not client.fatal:
                self.settle(client)
                heard = client.stop is not None or bool(client.fatal)
                expect(heard, f"{client.worker} never hears of the end")
        for name, tally in self.coordinator.roster.tallies.items():
            expect(tally.pending == 0, f"{tally.pending} contributions of {name} are left without a fate")
        picture = report(self.coordinator, self.now)
        expect(
            (picture.pending, picture.applied) == (0, self.guard.applied.total()), f"status says {picture}"
        )


def name_of(session: int) -> str:
    """A, B, C, ... as stories call the processes of one worker."""
    return chr(ord("A") + session) if session < 26 else f"A{session}"


def state(coordinator: Coordinator) -> str:
    """All that a coordinator remembers, as text, and how often its policy was asked."""
    c = coordinator
    people = (c.roster.present, c.roster.tallies, c.roster.unfinished)
    tickets = (c.tickets.next_number, c.tickets.live, c.tickets.settled)
    heard = c.policy.heard if isinstance(c.policy, Patient) else None
    rest = (c.version, c.initialised, c.started, c.stopped, c.loss, c.entries, heard)
    return repr((people, tickets, rest))
