"""Both sides of the protocol joined: engines and the real coordinator over streams that delay, break and lose.

Each committed ticket is answered once; over reconnections nothing is lost.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from psserver.coordinator import Coordinator, Declined, JobTerms, Output, Send, inputs
from psserver.policies import build
from pswire.protocol import received
from psworker.engine import ClientEngine, Commit, Event, Request
from tests.repetitions import FIRST_SEED, repetitions

TIMEOUT = 3.0
WORKERS = 3
SEEDS = repetitions(80, soak=3000)


@dataclass
class Client:
    """`made`: tickets with a commit that was sent and is not known to be void; `fates`: what came of them."""

    worker: str
    batches: int
    engine: ClientEngine = field(default_factory=ClientEngine)
    incarnation: int = -1
    connected: bool = False
    up: deque[Request] = field(default_factory=deque)
    down: deque[Event] = field(default_factory=deque)
    batch: int = 0
    initialise: bool = False
    # This commit, or its answer, was lost: it is sent again.
    again: Commit | None = None
    made: list[int] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)
    renewed: int = 0
    turned_away: bool = False

    def read(self) -> None:
        for each in self.engine.dispositions():
            assert each.ticket not in self.fates, f"{self.worker}: ticket {each.ticket} has two fates"
            assert each.fate != "pending"
            self.fates[each.ticket] = each.fate


class Joined:
    def __init__(self, policy: str, knobs: dict[str, object], seed: int) -> None:
        self.random = Random(seed)
        terms = JobTerms("j", workers=WORKERS, worker_timeout=TIMEOUT)
        self.coordinator = Coordinator(terms, build(policy, knobs, WORKERS))
        self.now, self.broken, self.exchanges = 0.0, 0, 0
        self.clients = {f"w{n}": Client(f"w{n}", self.random.randint(1, 6)) for n in range(WORKERS)}
        self.take(self.coordinator.take(inputs.Opened(), 0.0))

    def take(self, outputs: list[Output], diverted: str = "") -> list[Event]:
        """Notices travel down the streams; those of the worker `diverted` answer its exchange."""
        answer = []
        for output in outputs:
            if not isinstance(output, Send):
                continue
            client, event = self.clients[output.worker], received(output.notice, self.now)
            if client.incarnation != output.incarnation:
                continue
            if output.worker == diverted:
                answer.append(event)
            elif client.connected:
                client.down.append(event)
        return answer

    def send(self, client: Client, requests: list[Request]) -> None:
        if client.connected:
            client.up.extend(requests)

    def open(self, client: Client) -> None:
        asked = inputs.JoinAsked(client.worker, "A", int(client.worker[1:]))
        outputs = self.coordinator.take(asked, self.now)
        if any(isinstance(each, Declined) for each in outputs):
            # Given up, and the others have ended the job meanwhile.
            assert self.coordinator.state.stopped is not None
            client.turned_away = True
            return
        self.take(outputs)
        member = self.coordinator.state.roster.present[client.worker]
        before, client.incarnation, client.connected = client.incarnation, member.incarnation, True
        if before not in (-1, member.incarnation):
            client.engine.renew("given up", self.coordinator.state.roster.tally(client.worker).next_batch)
            client.renewed += 1
        self.send(client, client.engine.owed())
        self.take(self.coordinator.take(inputs.Connected(client.worker, member.incarnation, "A"), self.now))

    def cut(self, client: Client) -> None:
        """Everything that is on its way is lost."""
        if client.connected:
            client.connected = False
            client.up.clear()
            client.down.clear()
            self.take(self.coordinator.take(inputs.Disconnected(client.worker, client.incarnation), self.now))

    def receive_up(self, client: Client) -> None:
        request = client.up.popleft()
        self.take(
            self.coordinator.take(inputs.Requested(client.worker, client.incarnation, request), self.now)
        )

    def receive_down(self, client: Client) -> None:
        client.engine.receive(client.down.popleft())
        assert client.engine.error is None
        client.read()

    def move(self, client: Client, faults: bool) -> bool:
        """One step of the training loop. False: it waits."""
        engine = client.engine
        if client.again is not None:
            return self.commit(client, faults)
        if engine.stop is not None:
            return False
        match engine.work:
            case "idle":
                self.send(client, engine.ready() if client.batch < client.batches else engine.done())
            case "waiting" if client.batch >= client.batches:
                # What was asked for ahead was granted late.
                self.send(client, engine.done())
            case "waiting" if engine.grants:
                grant = engine.take_grant()
                assert grant is not None
                client.initialise = grant.initialise
            case "working" if engine.cancelled:
                assert engine.held is not None
                self.send(client, engine.abandon(engine.held, "cancelled"))
            case "working":
                self.work(client, faults)
            case _:
                return False
        return True

    def work(self, client: Client, faults: bool) -> None:
        engine, chance = client.engine, self.random.random
        ticket = engine.held
        assert ticket is not None
        if faults and chance() < 0.1:
            self.send(client, engine.abandon(ticket, "no use for it"))
            return
        more = client.batch + 1 < client.batches
        commit = Commit(ticket, client.batch, 8, 0.5, ready=more and not client.initialise)
        if faults and more and chance() < 0.4 and not client.initialise:
            self.send(client, engine.ready_ahead(ticket))
        client.batch += not client.initialise
        client.made.append(ticket)
        client.again = engine.commit(commit)
        self.commit(client, faults)

    def commit(self, client: Client, faults: bool) -> bool:
        """Send the commit, or send it again; it or its answer may be lost. The stream's messages stay on their way.

        False: the session must be open first, as server 0 says.
        """
        commit, engine = client.again, client.engine
        assert commit is not None
        if engine.committing is None or commit.ticket in engine.void:
            # Another membership has begun, or the ticket was cancelled.
            client.again = None
            self.over(client, commit, in_hand=engine.take_back(commit.ticket))
            return True
        if not client.connected:
            return False
        self.exchanges += 1
        if faults and self.random.random() < 0.2:
            return True  # the request was lost
        outputs = self.coordinator.take(inputs.Requested(client.worker, client.incarnation, commit), self.now)
        answer = self.take(outputs, diverted=client.worker)
        if faults and self.random.random() < 0.2:
            # The answer was lost: what it said comes by the stream.
            client.down.extend(answer)
            return True
        client.again = None
        engine.answered_commit(commit.ticket, answer)
        client.read()
        self.over(client, commit, in_hand=engine.held == commit.ticket)
        return True

    def over(self, client: Client, commit: Commit, *, in_hand: bool) -> None:
        """A commit is answered, or void: then its batch is worked on again, under another ticket."""
        if in_hand:
            client.made.remove(commit.ticket)
            client.batch -= not client.initialise

    def scene(self) -> None:
        client, chance = self.random.choice(list(self.clients.values())), self.random.random()
        if chance < 0.05:
            self.cut(client)
            self.broken += 1
        elif chance < 0.07:
            self.pass_time(TIMEOUT)
        elif not client.connected:
            self.open(client)
        elif chance < 0.45 and client.up:
            self.receive_up(client)
        elif chance < 0.75 and client.down:
            self.receive_down(client)
        else:
            self.move(client, faults=True)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.coordinator.take(inputs.Tick(), self.now))

    def run(self, scenes: int) -> None:
        """Random scenes, then no more faults until all are at their end."""
        for _ in range(scenes):
            if self.coordinator.state.stopped is None:
                self.scene()
        for _ in range(200):
            for client in self.clients.values():
                if not client.connected and not client.turned_away:
                    self.open(client)
                while client.up or client.down or (client.connected and self.move(client, faults=False)):
                    if client.up:
                        self.receive_up(client)
                    elif client.down:
                        self.receive_down(client)
            if self.coordinator.state.stopped is not None and not any(
                c.up or c.down for c in self.clients.values()
            ):
                break
            self.pass_time(0.4)


POLICIES: list[tuple[str, dict[str, object]]] = [
    ("async", {}),
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("ssp", {"slack": 1}),
    ("bounded", {"aggregate": 2, "max_staleness": 1, "on_stale": "block"}),
    ("ringmaster", {"threshold": 2, "stops": True}),
]


@pytest.mark.parametrize(
    ("policy", "knobs"), POLICIES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_commit_is_answered_once_and_nothing_is_lost(policy: str, knobs: dict[str, object]) -> None:
    broken = exchanges = renewed = away = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        joined = Joined(policy, knobs, seed)
        try:
            joined.run(150)
            stopped = joined.coordinator.state.stopped
            assert stopped is not None and stopped.success, stopped
            for client in joined.clients.values():
                client.read()
                away += client.turned_away
                if client.turned_away:
                    assert set(client.fates) <= set(client.made)
                    continue
                assert client.engine.stop is not None, f"{client.worker} was not told of the end"
                assert sorted(client.fates) == sorted(client.made), client
                agree(joined.coordinator, client)
                renewed += client.renewed
        except BaseException as error:
            error.add_note(f"{policy} {knobs}, seed {seed}")
            raise
        broken, exchanges = broken + joined.broken, exchanges + joined.exchanges
    # The schedules are not idle, and few clients miss the end.
    assert broken > 2 * SEEDS and exchanges > 2 * SEEDS and 10 * renewed > SEEDS > 10 * away, (
        broken,
        exchanges,
        renewed,
        away,
    )


def agree(coordinator: Coordinator, client: Client) -> None:
    """The fates that the client received are those that the coordinator counted, if no incarnation was lost."""
    tally = coordinator.state.roster.tallies[client.worker]
    fates = list(client.fates.values())
    assert tally.pending == 0
    # Each batch was committed once, whatever was lost.
    assert tally.committed == client.batches
    if client.renewed == 0:
        assert fates.count("unknown") == 0
        # The initial values are applied, and no contribution.
        assert fates.count("applied") - tally.applied in (0, 1)
