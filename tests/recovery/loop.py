"""What a worker does next: a message of its stream arrives, or its training loop takes a step."""

from pslab.verify.invariants import expect
from psworker.engine import Abandon, Commit
from psworker.errors import Voided
from tests.recovery.cluster import Cluster
from tests.recovery.worker import Exchange, Worker


class Loop:
    """The training loops of a cluster's workers, as `psworker.loop` and `psworker.session` have them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pick = cluster.choices.pick

    def send(self, worker: Worker) -> None:
        """The next message that it has sent arrives."""
        assert worker.member is not None
        request = worker.up.popleft()
        if isinstance(request, Commit | Abandon):
            worker.said.append((worker.member, request))
        self._cluster.deliver(worker.name, worker.member, request)

    def receive(self, worker: Worker) -> None:
        """The next message to it arrives."""
        worker.engine.receive(worker.down.popleft())
        expect(worker.engine.error is None, f"{worker.name} is refused: {worker.engine.error}")

    def move(self, worker: Worker, *, calm: bool = False) -> bool:
        """One step of the loop. False: it waits. `calm`: nothing is drawn."""
        engine = worker.engine
        if worker.member is None:
            # Nothing is begun before it has joined.
            return False
        if worker.exchange is not None:
            return self._exchanged(worker)
        if worker.broken is not None:
            self._again(worker)
            return True
        if engine.take_rollback():
            worker.batch = worker.next_batch
            return True
        if engine.stop is not None:
            return False
        match engine.work:
            case "idle":
                worker.send(engine.ready() if worker.batch < worker.batches else engine.done())
            case "granted" if worker.batch >= worker.batches:
                # What was asked for before it went back is not needed any more.
                worker.send(engine.done())
            case "granted":
                grant = engine.take_grant()
                assert grant is not None
                worker.initialise, worker.index = grant.initialise, grant.index
            case "cancelled":
                assert engine.held is not None
                worker.send(engine.abandon(engine.held, "cancelled"))
            case "working":
                return self._work(worker, calm)
            case _:
                return False
        return True

    def _again(self, worker: Worker) -> None:
        """The answer to its commit is lost, perhaps the commit too: by the stream, which counts once."""
        commit, worker.broken = worker.broken, None
        assert commit is not None
        try:
            worker.send(worker.engine.commit(commit))
        except Voided:
            worker.batch -= 1
            worker.send(worker.engine.abandon(commit.ticket, "void"))

    def _exchanged(self, worker: Worker) -> bool:
        """The answer of its exchange arrives, if there is one."""
        exchange, engine = worker.exchange, worker.engine
        assert exchange is not None
        if not exchange.arrived:
            return False
        worker.exchange = None
        if exchange.refused:
            # Nothing was committed: its batch is worked on again.
            worker.batch -= 1
            engine.rollback_commit(exchange.commit.ticket)
            worker.send(engine.abandon(exchange.commit.ticket, "cancelled"))
        for event in exchange.answer:
            engine.receive(event)
        return True

    def _work(self, worker: Worker, calm: bool) -> bool:
        """Push what belongs to the ticket in hand to all servers, and commit it."""
        engine, ticket, cluster = worker.engine, worker.engine.held, self._cluster
        assert ticket is not None and worker.member is not None
        if not all(
            shard.job == worker.member[0] and shard.executed > worker.index for shard in cluster.shards
        ):
            return False
        if any(shard.refuses(ticket) for shard in cluster.shards):
            worker.send(engine.abandon(ticket, "cancelled"))
            return True
        for shard in cluster.shards:
            shard.push(ticket)
        if worker.initialise:
            worker.send(engine.commit(Commit(ticket)))
            return True
        commit = Commit(ticket, worker.batch, 8, 0.5, ready=worker.batch + 1 < worker.batches)
        worker.batch += 1
        if cluster.servers == 1 and worker.connected and not calm and self._pick(2):
            worker.exchange = Exchange(worker.member, engine.begin_commit(commit))
        else:
            worker.send(engine.commit(commit))
        return True

    def arrive(self, worker: Worker) -> None:
        """What its exchange carries comes to server 0: the payload, and behind it the commit."""
        exchange, cluster = worker.exchange, self._cluster
        assert exchange is not None and not exchange.arrived
        name, commit, exchange.arrived = worker.name, exchange.commit, True
        if cluster.refuses(name, exchange.member) or cluster.shards[0].refuses(commit.ticket):
            exchange.refused = True
        else:
            exchange.answer = cluster.deliver(name, exchange.member, commit, diverted=name)
