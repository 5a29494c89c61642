"""Random schedules against the real coordinator: delays, repetitions, broken connections, deaths, returns, unknown
sessions.

Choices are drawn from a `ChoiceSource`, so that a seeded generator and a search for the smallest failing schedule can
play the same scenes.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pslab.verify.clients import Adversary, Client
from pslab.verify.guarded import NO_CONTROLLER, TIMEOUT, USUAL_LOSS, StagedShard, named
from pslab.verify.harness import MODEL
from pslab.verify.invariants import Guard, InvariantViolation, expect
from pslab.verify.time_limit import TimeLimitedPolicy
from psserver.coordinator import (
    Coordinator,
    Input,
    JobState,
    JobTerms,
    Output,
    Record,
    Send,
    declined,
    inputs,
)
from psserver.coordinator.status import report
from psserver.decisions.entries import Apply
from psserver.policies import build
from psserver.records import StateError
from pswire import protocol
from pswire.generations import Generation
from pswire.protocol import received
from psworker.engine import Abandon, Commit, Done, Ready, Request

# A policy's name and knobs.
Named = tuple[str, Mapping[str, object]]
# One scene in 24 begins with a change of the policy, where there are others.
CHANGE = 24
# What workers and shards tell a controller. It decides at most every 20 updates, so the data are `MORE` times as long.
TOLD = (0.5, 1.0, 2.0, 0.125)
MORE = 80
# Loss and norm of one commit in four; a worker may have neither.
UNUSUAL: Sequence[tuple[float, float]] = (
    (math.nan, 1.0),
    (0.5, math.nan),
    (math.nan, math.nan),
    (0.0, 0.0),
    (5e-324, 5e-324),
    (1e-9, 1e-9),
    (1e300, 1e300),
    (3e38, 1e-3),
    (1e-3, 3e38),
    (-3.0, 7.5),
    (2.0, 0.125),
    (0.25, 40.0),
    (0.7, 2.0),
    (123.0, 0.3),
    (1.0, 1e12),
    (1e12, 1.0),
)


class ChoiceSource(Protocol):
    """Where the choices of a schedule come from."""

    def pick(self, n: int) -> int:
        """Return one of 0 .. n - 1."""
        ...


class Seeded:
    """A generator that makes the same choices for the same seed, on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, n: int) -> int:
        # Fast enough, and even enough for n far below 2 ** 16.
        return self._random.getrandbits(16) * n >> 16


class ListedChoices:
    """Choices from a list, and after its end always 0, the calmest."""

    def __init__(self, choices: list[int]) -> None:
        self._choices = iter(choices)

    def pick(self, n: int) -> int:
        return next(self._choices, 0) % n


class Schedule:
    """One job from its first worker to its stop. `log`: its records; `acts`: what happened, as lines of a golden trace.

    Messages that the coordinator answers without asking the policy are no acts. With `servers` a shard executes the
    log, and payloads wait for their turn.
    """

    def __init__(
        self,
        policy: str,
        knobs: Mapping[str, object],
        choices: ChoiceSource,
        *,
        workers: int = 3,
        servers: bool = False,
        eager: bool = False,
        phases: int = 1,
        others: Sequence[Named] = (),
        adapt: Mapping[str, object] = NO_CONTROLLER,
    ) -> None:
        """`eager`: workers ask ahead. `phases`: of each worker's process, which stays if there are several. `others`:
        policies to which an operator may change it. `adapt`: name and knobs of a controller."""
        self.choices, self.adapt = choices, adapt
        # Versions whose measures have not come yet.
        self.unmeasured: list[int] = []
        self.eager, self.others, self.size = eager, others, workers
        self.now = 0.0
        self.generation = 0
        self.case = (policy, knobs)
        self.policies: list[TimeLimitedPolicy] = []
        self.coordinator = self._begun(1)
        self.policy = self.policies[0]
        self.guard = Guard(policy)
        self.servers = StagedShard(workers=workers, tensors=self.policy.tensors) if servers else None
        self.log: list[Record] = []
        self.acts: list[str] = []
        self.phases = phases
        most = MORE if adapt else 1
        self.clients = {f"w{n}": Client(f"w{n}", batches=choices.pick(5) * most) for n in range(workers)}
        if not any(client.batches for client in self.clients.values()):
            self.clients["w0"].batches = 1
        for client in self.clients.values():
            client.phases = [client.batches, *(choices.pick(5) for _ in range(phases - 1))]
        self.give(inputs.Opened())
        self.give(inputs.ModelProposed(MODEL))
        self.names = list(self.clients)

    def _begun(self, servers: int, state: JobState | None = None) -> Coordinator:
        """Return a new coordinator of the job, which goes on from the state."""
        terms = JobTerms(
            job=Generation("j", self.generation).name,
            servers=servers,
            workers=self.size,
            worker_timeout=TIMEOUT,
            regather=TIMEOUT,
            generation=self.generation,
            adapt=self.adapt,
        )
        policy = TimeLimitedPolicy(build(*self.case, self.size))
        self.policies.append(policy)
        return Coordinator(terms, policy, given=state)

    @property
    def events(self) -> int:
        """The number of events that the policy received, with all who went on from its states."""
        return sum(policy.events for policy in self.policies)

    def give(self, given: Input) -> list[Output]:
        """Give the coordinator an input now."""
        return self.take(self.coordinator.take(given, self.now))

    def take(self, outputs: list[Output]) -> list[Output]:
        """Check and execute the log's new entries, and send the notices on their way."""
        for output in outputs:
            if isinstance(output, Record):
                self.log.append(output)
                self.guard.read(output)
                if self.adapt and isinstance(output.entry, Apply):
                    self.unmeasured.append(output.entry.version)
                if self.servers is not None:
                    self.servers.execute(output.entry)
            elif isinstance(output, Send):
                client = self.clients.get(output.worker)
                if client and client.incarnation == output.incarnation and client.connected:
                    client.down.append(received(output.notice, self.now))
        self.guard.compare(self.coordinator)
        if self.servers is not None:
            self.servers.somebody_can_move(self.coordinator)
        while self.unmeasured and self.choices.pick(8):
            self.measure(self.unmeasured.pop(0), TOLD[self.choices.pick(4)])
        return outputs

    # Scenes

    def run(self, steps: int) -> None:
        """Play `steps` random scenes, then no more faults: the job must come to its end."""
        pick = self.choices.pick
        for _ in range(steps):
            if self.others and not pick(CHANGE):
                self.change_policy(*self.others[pick(len(self.others))])
            self.scene(self.clients[self.names[pick(len(self.names))]], pick(64))
            if self.coordinator.state.stopped is not None:
                break
        self.run_to_completion()

    def scene(self, client: Client, chance: int) -> None:
        if chance < 50:
            self.proceed(client)
        elif chance < 52:
            self.adversary().repeat(client.worker)
        elif chance < 54:
            self.adversary().lie(client.worker, client.incarnation)
        elif chance < 56:
            self.cut(client)
        elif chance == 56:
            self.kill(client)
        elif chance == 57:
            self.leaves(client)
        elif chance < 61:
            self.wait(0.2 * self.choices.pick(4))
        elif chance == 61:
            self.wait(TIMEOUT)
        elif chance == 63 and self.phases == 1:
            self.servers_change(self.choices.pick(4))
        else:
            self.adversary().join_again(client.worker)

    def adversary(self) -> Adversary:
        return Adversary(self.coordinator, self.choices.pick, self.now, self.guard)

    def proceed(self, client: Client) -> None:
        """Do what comes next for this worker: a message arrives, a notice arrives, or it computes."""
        if not client.alive or not client.connected:
            if not client.gone and not client.failed:
                self.connect(client)
            return
        if client.engine.stop is not None and self.phases > 1:
            self.go_on(client)
            return
        way = self.choices.pick(3)
        if client.up and (way == 0 or not (client.down or client.can_move)):
            self.deliver(client, client.up.popleft())
        elif client.down and (way == 1 or not client.can_move):
            client.receive()
        elif self.eager and client.may_ask_ahead and self.choices.pick(2):
            client.ask_ahead()
        elif client.can_move:
            client.move(abandon=self.choices.pick(16) == 15, ready=self.choices.pick(4) != 3)

    def deliver(self, client: Client, request: Request) -> bool:
        """Hand a request to the coordinator. Return False if it is a commit whose payload has to wait for its turn."""
        norm = 1.0
        if isinstance(request, Commit):
            if self.servers is not None and not self.servers.push(request.ticket):
                client.up.appendleft(request)
                return False
            request, norm = self._measured(request)
        self._note(client, request, norm)
        outputs = self.coordinator.take(
            inputs.Requested(client.worker, client.incarnation, request, norm=norm), self.now
        )
        refused = [o for o in outputs if isinstance(o, Send) and isinstance(o.notice, protocol.Refusal)]
        # Only messages of a connection that was superseded or given up may be refused.
        present = self.coordinator.state.roster.present.get(client.worker)
        honest = present is not None and present.incarnation == client.incarnation
        expect(not (refused and honest), f"{client.worker} is refused: {refused}")
        self.take(outputs)
        return True

    def _measured(self, commit: Commit) -> tuple[Commit, float]:
        """Return the commit with a loss, and the norm of its gradient."""
        chance = self.choices.pick(64)
        if not self.adapt:
            usual = chance < 64 - len(UNUSUAL)
            loss, norm = (commit.loss, 1.0) if usual else UNUSUAL[63 - chance]
            return replace(commit, loss=loss), norm
        if chance == 63:
            return replace(commit, loss=math.nan), TOLD[self.choices.pick(4)]
        # Losses fall, so that a controller that follows them has something to do.
        loss = TOLD[self.choices.pick(4)] / (1 + self.coordinator.state.version // 16)
        return replace(commit, loss=loss), TOLD[self.choices.pick(4)]

    def measure(self, version: int, square: float) -> None:
        """Have the shards tell the square of an update."""
        self.acts.append(f"shards make {version} square={square!r}")
        self.give(inputs.Executed(version, square=square))

    def _note(self, client: Client, request: Request, norm: float) -> None:
        """Add the request to the acts if the policy sees it."""
        match request:
            case Ready(0):
                self._act(client, "ready")
            case Done():
                self._act(client, "done")
            case Abandon(ticket):
                self._act(client, "abandons", self._named(client, ticket))
            case Commit(ticket, ready=ready, loss=loss):
                verb = "commits" if ready else "commits-its-last"
                facts = (
                    f"loss={loss!r}" if loss != USUAL_LOSS else "",
                    f"norm={norm!r}" if norm != 1 else "",
                )
                self._act(client, verb, self._named(client, ticket), *facts)

    def _named(self, client: Client, ticket: int) -> str:
        """Return the ticket as a word of an act; empty for the one that the worker holds."""
        held = [opened.number for opened in self.coordinator.state.tickets.open_of(client.worker)]
        return "" if held == [ticket] else str(ticket)

    def _act(self, client: Client, *words: str) -> None:
        member = self.coordinator.state.roster.present.get(client.worker)
        # A message of a former incarnation is refused, and not part of the trace.
        if words[0] == "joins" or (member is not None and member.incarnation == client.incarnation):
            self.acts.append(" ".join([client.worker, *filter(None, words)]))

    def connect(self, client: Client) -> None:
        """Join and open a connection: as a new process, after a broken connection, or after being given up."""
        coordinator = self.coordinator
        if not client.alive:
            client.restart(coordinator.state.roster.tally(client.worker).next_batch)
        session, rank = name_of(client.session), int(client.worker[1:])
        asked = inputs.JoinAsked(client.worker, session, rank, stays=self.phases > 1)
        outputs = coordinator.take(asked, self.now)
        if declined(outputs) is not None:
            # Only a process that the job does not know may be refused, and only after the stop.
            present = coordinator.state.roster.present.get(client.worker)
            known = present is not None and present.session == session
            expect(coordinator.state.stopped is not None and not known, f"{client.worker} may not join")
            client.turned_away = "the job is over"
            return
        self._act(client, "joins", "" if session == name_of(0) else session)
        self.take(outputs)
        member = coordinator.state.roster.present[client.worker]
        known = client.incarnation == member.incarnation
        client.incarnation, client.connected = member.incarnation, True
        self.give(inputs.Connected(client.worker, member.incarnation, session))
        if known:
            client.resume()
            return
        if self.coordinator.state.phase >= self.phases > 1:
            self._finishes(client)
            return
        self._place(client)
        client.renew()

    def _place(self, client: Client) -> None:
        """Skip the phases that are over, as a script does that is started again."""
        phase = self.coordinator.state.phase
        if self.phases > 1 and client.engine.stop is None and not client.engine.exhausted:
            first = self.coordinator.state.roster.tally(client.worker).phase_batch
            client.batches = first + client.phases[phase]
            client.ends = (
                "a callback" if self.coordinator.state.version and self.choices.pick(16) == 15 else ""
            )

    def go_on(self, client: Client) -> None:
        """End a phase for this worker: its process begins the next one, or ends."""
        if self.coordinator.state.stopped is not None:
            return
        if self.coordinator.state.phase < self.phases:
            client.alive = False
            self.connect(client)
        else:
            self._finishes(client)

    def _finishes(self, client: Client) -> None:
        """End the process after its last phase."""
        present = self.coordinator.state.roster.present.get(client.worker)
        if present is not None and present.incarnation == client.incarnation:
            client.hang_up()
            client.gone = True
            self._act(client, "leaves")
            self.give(inputs.Requested(client.worker, client.incarnation, protocol.Leave("finished")))

    def cut(self, client: Client) -> None:
        """Break the connection; the process does not notice at once."""
        if client.connected:
            client.hang_up()
            self._act(client, "disconnects")
            self.give(inputs.Disconnected(client.worker, client.incarnation))

    def kill(self, client: Client) -> None:
        """Kill the process. Its connection may take a while to break. At least one worker always survives."""
        client.alive = False
        # A worker that never joined must come back: the start waits for all.
        others = sum(not c.gone for c in self.clients.values()) > 1
        client.gone = self.choices.pick(3) == 2 and others and client.incarnation >= 0
        if client.gone or self.choices.pick(2):
            self.cut(client)

    def leaves(self, client: Client) -> None:
        if client.connected and not client.finished:
            client.hang_up()
            client.alive = False
            self._act(client, "leaves")
            who, leave = (client.worker, client.incarnation), protocol.Leave("had enough")
            self.give(inputs.Requested(*who, leave))

    def change_policy(self, name: str, knobs: Mapping[str, object]) -> None:
        """Have an operator change the policy, who may be refused."""
        self.acts.append(f"policy becomes {named(name, knobs)}")
        self.give(inputs.ChangeAsked(name, dict(knobs), "operator"))

    def servers_change(self, servers: int) -> None:
        """Save a checkpoint and restart the job from it as so many servers; 0: a copy takes over.

        A policy that cannot be saved goes on.
        """
        former = self.coordinator
        if former.state.stopped is not None:
            return
        try:
            former.saved()
        except StateError:
            return
        if not servers:
            self.acts.append("copy takes over")
            self._go_on(former.saved())
            for worker, member in list(self.coordinator.state.roster.present.items()):
                if member.absent_since is None:
                    self.acts.append(f"{worker} disconnects")
                    self.give(inputs.Disconnected(worker, member.incarnation))
        elif outputs := former.take(inputs.SaveAsked(), self.now):
            self.acts.append(f"servers restart {servers}")
            self.take(outputs)
            self.generation += 1
            self._go_on(former.saved(), servers)
            self.give(inputs.Resumed(0))

    def _go_on(self, saved: Mapping[str, object], servers: int = 0) -> None:
        """Begin another coordinator with the state. All connections break."""
        state = JobState.read(saved)
        state.servers = servers or state.servers
        self.coordinator = self._begun(state.servers, state)
        for client in self.clients.values():
            client.hang_up()

    def wait(self, seconds: float) -> None:
        """Let time pass; where a timer is set, perhaps just until it is due."""
        due = self.coordinator.due
        if due is not None and self.choices.pick(2):
            seconds = max(0.0, due - self.now)
        self.now += seconds
        self.acts.append(f"{seconds!r} seconds pass")
        self.give(inputs.Tick())

    # The end

    def run_to_completion(self) -> None:
        """Play on without faults: all workers but the lost ones come back, and the job must end in success."""
        for client in self.clients.values():
            client.turned_away = ""
            if client.failed:
                client.alive = False
        for _ in range(400):
            if self.coordinator.state.stopped is not None:
                break
            for client in self.clients.values():
                if not client.gone:
                    self.settle(client)
            self.wait(0.4)
        self.ended()

    def settle(self, client: Client) -> None:
        """Do everything that this worker can do now."""
        if not (client.alive and client.connected):
            self.connect(client)
        while client.up or client.down or client.can_move:
            if client.engine.stop is not None and self.phases > 1:
                break
            if client.up:
                if not self.deliver(client, client.up.popleft()):
                    if not client.down:
                        return  # other payloads come before it
                    client.receive()
            elif client.down:
                client.receive()
            else:
                client.move(abandon=False, ready=True)
        if client.engine.stop is not None and self.phases > 1 and not client.gone:
            self.go_on(client)

    def ended(self) -> None:
        stopped = self.coordinator.state.stopped
        if stopped is None:
            raise InvariantViolation("the job does not end, though all workers are here and do what they can")
        if not (stopped.cause == "policy" and stopped.success):
            # Without initial values, all workers that had data were lost before they could bring any.
            wanted = (True, "done") if self.coordinator.state.initialised else (False, "empty")
            expect((stopped.success, stopped.cause) == wanted, stopped.reason)
        expect(not self.guard.complaint, self.guard.complaint)
        expect(
            self.coordinator.state.phase <= self.phases,
            f"{self.coordinator.state.phase} phases of {self.phases}",
        )
        expect(self.guard.log.stop is not None, "the log has no stop entry")
        for client in self.clients.values():
            if not client.gone and not client.failed:
                self.settle(client)
                notified = client.engine.stop is not None or client.failed
                expect(notified, f"{client.worker} does not receive the stop")
        for name, tally in self.coordinator.state.roster.tallies.items():
            expect(tally.pending == 0, f"{tally.pending} contributions of {name} are left without a fate")
        picture = report(self.coordinator, self.now)
        expect(
            (picture.pending, picture.applied) == (0, self.guard.log.applied.total()),
            f"status says {picture}",
        )


def name_of(session: int) -> str:
    """Return A, B, C, ...: the names of one worker's processes in traces."""
    return chr(ord("A") + session) if session < 26 else f"A{session}"
