"""One light worker: the protocol of a session and its payloads, without I/O and without any computation.

`psworker.engine` decides what may be said when; here is only what a real worker's data plane does around it. With one
server a commit travels with its payload, and the answer brings the next grant and its version; with several, payloads
are pushed to each, and the commit goes to the coordinator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from pswire.messages import COMMITS, EVENTS, REQUESTS
from pswire.model.plan import Plan
from pswire.protocol import received
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.engine import ClientEngine, Commit, Grant, StreamRequest

if TYPE_CHECKING:
    from benchmarks.swarm.swarm import Swarm

ABORTED = grpc.StatusCode.ABORTED.value[0]


class Model:
    """What all members push: the same payload to each server, cut into messages' chunks once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chunks: list[list[bytes]] = []
        for shard in plan.shards:
            payload = bytes(4 * shard.elements)
            self.chunks.append([b"".join(frames.chunk_field(data)) for data in frames.chunks(payload)])


@dataclass
class _Answer:
    """What is awaited of one server. `kind`: "push", "pull", "step", or "" for nothing."""

    kind: str = ""
    # Bytes of a version that have not come yet.
    left: int = 0
    versioned: bool = False


class Member:
    """`send(server, message)` and `say(request)` carry its words; `deliver`, `hear` and `ended` bring those of the
    servers. All in one thread."""

    def __init__(
        self,
        model: Model,
        swarm: "Swarm",
        send: Callable[[int, bytes], None],
        say: Callable[[pb.SessionRequest], None],
    ) -> None:
        self.engine = ClientEngine()
        self.alive = True
        # Between its grant and its commit, with the version at hand.
        self.fresh = False
        self._model, self._swarm, self._send, self._say = model, swarm, send, say
        self._servers = len(model.plan.shards)
        self._answers = [_Answer() for _ in range(self._servers)]
        self._receipts: list[bytes] = []
        self._grant: Grant | None = None
        self._sent_at: float | None = None
        self._hello = pb.Hello()
        self._push = shard_pb2.PushHeader()
        self._pull = shard_pb2.PullRequest()

    def admit(self, reply: pb.JoinReply, session: str) -> None:
        """It has joined."""
        self._hello = pb.Hello(
            job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=session
        )
        plan = self._model.plan.fingerprint
        who = {"job": reply.job, "worker": reply.worker, "incarnation": reply.incarnation}
        token = reply.membership_token
        self._push = shard_pb2.PushHeader(**who, membership_token=token, plan=plan, dtype=FLOAT32.number)
        self._pull = shard_pb2.PullRequest(**who, membership_token=token, plan=plan, dtype=FLOAT32.number)

    @property
    def hello(self) -> pb.SessionRequest:
        """The first message of the session."""
        return pb.SessionRequest(hello=self._hello)

    def claim(self) -> shard_pb2.Attach:
        """The first frame of a connection; over gRPC it asks where a server takes connections."""
        push = self._push
        return shard_pb2.Attach(
            job=push.job,
            worker=push.worker,
            incarnation=push.incarnation,
            membership_token=push.membership_token,
            plan=push.plan,
            after=0 if self._grant is None else self._grant.index,
        )

    def adopt(self) -> None:
        """A grant that nobody sent, with its version: where no server stands behind."""
        self._grant = self.engine.take_grant()
        self._have_version()

    # What it does

    def ready(self) -> None:
        """It wants a ticket."""
        self._tell(self.engine.ready())

    def contribute(self) -> None:
        """Push and commit, and ask for the next ticket."""
        grant = self._grant
        assert grant is not None and self.fresh, "a member commits what it was granted"
        self.fresh = False
        if grant.ticket in self.engine.void:
            self._start_over("cancelled")
            return
        if self._servers > 1:
            self._receipts = [b""] * self._servers
            for server in range(self._servers):
                self._send_payload(server, "push", grant)
            return
        commit = self.engine.commit(Commit(grant.ticket, samples=1, loss=1.0, ready=True))
        self._sent_at = self._swarm.now()
        self._send_payload(0, "step", grant, commit)

    def _send_payload(self, server: int, kind: str, grant: Grant, commit: Commit | None = None) -> None:
        self._answers[server] = _Answer(kind)
        header, chunks = self._push, self._model.chunks[server]
        header.ticket, header.after = grant.ticket, grant.index
        header.bytes = 4 * self._model.plan.shards[server].elements
        request = shard_pb2.ExchangeRequest(
            push=header,
            commit=None if commit is None else self._commit_request(commit),
        )
        first, *others = chunks or [b""]
        self._send(server, request.SerializeToString() + first)
        for chunk in others:
            self._send(server, chunk)

    def _commit_request(self, commit: Commit) -> pb.CommitRequest:
        return pb.CommitRequest(hello=self._hello, commit=COMMITS.to_wire(commit))

    def _start_over(self, reason: str) -> None:
        """Give the ticket back and ask for another one."""
        ticket = self.engine.held
        if ticket is not None:
            self._tell(self.engine.abandon(ticket, reason))
        self._grant, self._sent_at = None, None
        self.ready()
        self._look()

    def _tell(self, requests: Sequence[StreamRequest]) -> None:
        for request in requests:
            self._say(REQUESTS.to_wire(request))

    # What it hears

    def hear(self, events: Sequence[pb.SessionEvent], committed: int = 0) -> None:
        """Events of the session, or of the answer to the commit of ticket `committed`."""
        now = self._swarm.now()
        known = [received(e, now) for m in events if (e := EVENTS.from_wire(m)) is not None]
        if committed:
            self.engine.answered_commit(committed, known)
        else:
            for event in known:
                self.engine.receive(event)
        if self.engine.refusal is not None:
            self.end(f"refused: {self.engine.refusal.message}")
        elif self.engine.stop is not None:
            self.end(f"the job is over: {self.engine.stop.reason}")
        else:
            self._look()

    def deliver(self, server: int, message: bytes | memoryview) -> None:
        """One message of a server's answer."""
        answer = self._answers[server]
        if answer.left:
            answer.left -= _parsed(message)[1]
        else:
            reply, size = _parsed(message)
            answer.versioned = bool(reply.bytes)
            answer.left = reply.bytes - size
            if answer.kind == "push":
                self._receipts[server] = reply.receipt
            if answer.kind in ("step", "commit"):
                commit = self.engine.committing
                self.hear(reply.events, 0 if commit is None else commit.ticket)
        if not answer.left and self.alive:
            kind, answer.kind = answer.kind, ""
            self._answered(kind, answer.versioned)

    def ended(self, server: int, code: int, reason: str) -> bool:
        """A server's stream is over. True: a new one is needed; what was under way is settled already."""
        kind = self._answers[server].kind
        self._answers[server] = _Answer()
        grant = self._grant
        if code != ABORTED or grant is None:
            self.end(f"server {server}: {reason}")
            return False
        if kind in ("step", "commit"):
            self.engine.take_back(grant.ticket)
        self._start_over("refused")
        return True

    def end(self, reason: str) -> None:
        """It takes no further part."""
        if self.alive:
            self.alive = False
            self._swarm.lost(self, reason)

    def _answered(self, kind: str, versioned: bool) -> None:
        """A server's answer is complete."""
        if any(each.kind for each in self._answers):
            return
        grant = self._grant
        if kind == "push" and grant is not None:
            self._commit(grant)
        elif kind == "pull":
            self._have_version()
        elif kind in ("step", "commit"):
            self._grant = None
            self._look(versioned=versioned)
        else:
            self._look()

    def _commit(self, grant: Grant) -> None:
        receipts, initial = tuple(self._receipts), grant.initialise
        if grant.ticket in self.engine.void:
            self._start_over("cancelled")
            return
        if not initial:
            self._sent_at = self._swarm.now()
        facts = Commit(grant.ticket, samples=0 if initial else 1, loss=1.0, ready=True)
        commit = self.engine.commit(facts.measured(None, receipts))
        self._answers[0] = _Answer("commit")
        request = shard_pb2.ExchangeRequest(commit=self._commit_request(commit))
        self._send(0, request.SerializeToString())

    def _look(self, *, versioned: bool = False) -> None:
        """Is there a grant to work on?"""
        engine = self.engine
        if self._grant is not None or not engine.grants or any(each.kind for each in self._answers):
            return
        grant = self._grant = engine.take_grant()
        if self._sent_at is not None:
            self._swarm.committed(self, grant.received_at - self._sent_at)
            self._sent_at = None
        if grant.initialise:
            self._receipts = [b""] * self._servers
            for server in range(self._servers):
                self._send_payload(server, "push", grant)
        elif versioned:
            self._have_version()
        else:
            for server in range(self._servers):
                self._answers[server] = _Answer("pull")
                self._pull.ticket, self._pull.version, self._pull.after = (
                    grant.ticket,
                    grant.version,
                    grant.index,
                )
                self._send(server, shard_pb2.ExchangeRequest(pull=self._pull).SerializeToString())

    def _have_version(self) -> None:
        self.fresh = True
        self._swarm.runnable(self)


def _parsed(message: bytes | memoryview) -> tuple[shard_pb2.ExchangeReply, int]:
    """An answer's first message, and the bytes of a payload that it holds."""
    reply, chunk = frames.parsed(shard_pb2.ExchangeReply, message)
    return reply, 0 if chunk is None else chunk.nbytes
