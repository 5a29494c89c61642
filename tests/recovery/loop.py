"""What a worker does next: a message of its stream arrives, or its training loop takes a step."""

from pslab.verify.invariants import expect
from psworker.engine import Abandon, Commit
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

    def move(self, worker: Worker) -> bool:
        """One step of the loop. False: it waits."""
        engine = worker.engine
        if worker.member is None:
            # Nothing is begun before it has joined.
            return False
        if worker.exchange is not None:
            return self._exchanged(worker)
        if worker.commit is not None:
            return self._send_commit(worker)
        if engine.take_rollback():
            worker.batch = worker.next_batch
            return True
        if engine.stop is not None:
            return False
        match engine.work:
            case "idle":
                worker.send(engine.ready() if worker.batch < worker.batches else engine.done())
            case "waiting" if engine.grants and worker.batch >= worker.batches:
                # What was asked for before it went back is not needed any more.
                worker.send(engine.done())
            case "waiting" if engine.grants:
                grant = engine.take_grant()
                assert grant is not None
                worker.initialise, worker.index = grant.initialise, grant.index
            case "working" if engine.cancelled:
                assert engine.held is not None
                worker.send(engine.abandon(engine.held, "cancelled"))
            case "working":
                return self._work(worker)
            case _:
                return False
        return True

    def _send_commit(self, worker: Worker) -> bool:
        """Send a commit that is not answered, unless its ticket is void. False: it waits for its session."""
        commit, engine = worker.commit, worker.engine
        assert commit is not None and worker.member is not None
        if engine.committing is None or commit.ticket in engine.void:
            self._over(worker, in_hand=engine.take_back(commit.ticket))
            return True
        if not worker.connected:
            return False
        worker.exchange = Exchange(worker.member, commit)
        return True

    def _over(self, worker: Worker, *, in_hand: bool) -> None:
        """A commit is answered. `in_hand`: its ticket was void, and its batch is worked on again."""
        commit, worker.commit = worker.commit, None
        if in_hand:
            assert commit is not None
            worker.batch -= not worker.initialise
            worker.send(worker.engine.abandon(commit.ticket, "void"))

    def _exchanged(self, worker: Worker) -> bool:
        """The answer to its commit arrives, if there is one."""
        exchange, engine = worker.exchange, worker.engine
        assert exchange is not None
        if not exchange.arrived:
            return False
        worker.exchange, ticket = None, exchange.commit.ticket
        engine.answered_commit(ticket, exchange.answer)
        self._over(worker, in_hand=engine.held == ticket)
        return True

    def _work(self, worker: Worker) -> bool:
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
        commit = Commit(ticket, worker.batch, 8, 0.5, ready=worker.batch + 1 < worker.batches)
        if worker.initialise:
            commit = Commit(ticket)
        self._begin_commit(worker, commit, fused=cluster.servers == 1)
        return True

    def _begin_commit(self, worker: Worker, commit: Commit, *, fused: bool) -> None:
        assert worker.member is not None
        worker.batch += not worker.initialise
        worker.commit, worker.fused = worker.engine.commit(commit), fused
        worker.exchange = Exchange(worker.member, worker.commit)

    def arrive(self, worker: Worker) -> None:
        """Its commit comes to server 0, behind the payload or behind receipts."""
        exchange, cluster = worker.exchange, self._cluster
        assert exchange is not None and not exchange.arrived
        name, commit = worker.name, exchange.commit
        if cluster.refuses(name, exchange.member):
            # It sends the commit again when it has joined again.
            worker.exchange = None
            return
        exchange.arrived = True
        exchange.answer = cluster.deliver(name, exchange.member, commit, diverted=name)
