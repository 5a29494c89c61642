"""Processes that know addresses and whatever Status and refusals say, and are no members."""

from collections.abc import Callable, Iterable, Iterator

import grpc

from pswire.messages import specs_to_wire
from pswire.model.plan import VariableSpec, make_plan
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.attack.doors import Broken
from tests.attack.target import COORDINATOR, SHARD, Attacker

# Another model than the job's: nobody is to be admitted with it.
OTHER = (VariableSpec("y", (3, 5)), VariableSpec("m", (2,), kind="state"))
BEYOND_GRPC = ("/grpc.health.v1.Health/Check", f"{SHARD}/Pillage", f"{COORDINATOR}/Follow")


class Stranger(Attacker):
    def act(self) -> None:
        """One call."""
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (4, self._join),
            (2, self._status_call),
            (2, self._locate),
            (5, self._session),
            (5, self._push),
            (4, self._pull),
            (6, self._exchange),
            (4, self._follow),
        )
        weights, functions = zip(*acts, strict=True)
        self.chance.choices(functions, weights)[0]()

    def refused(self, server: int, path: str, requests: Iterable[bytes], **limits: int) -> None:
        """A call that nobody but a member, or a server of the job, is to be answered."""
        if self.send(server, path, requests, **limits):
            self.tally.wrong(f"{path} of server {server} answered a stranger")

    def _stream(self, messages: list[bytes]) -> Iterator[bytes]:
        """As they are, changed, or broken off."""
        chance = self.chance
        if chance.random() < 0.5:
            messages = self.mutate.sequence(messages)
        breaks = chance.random() < 0.15
        yield from messages
        if breaks:
            raise Broken

    def _maybe(self, message: object, often: float = 0.6) -> bytes:
        if self.chance.random() < often:
            self.mutate.message(message)  # type: ignore[arg-type]
        data: bytes = message.SerializeToString()  # type: ignore[attr-defined]
        return self.mutate.data(data) if self.chance.random() < 0.15 else data

    def _name(self) -> str:
        return self.chance.choice([*self.target.honest, "nobody", ""])

    def _join(self) -> None:
        chance, servers = self.chance, len(self.target.doors)
        plan = make_plan(OTHER, servers)
        request = pb.JoinRequest(
            worker=self._name(),
            session=chance.randbytes(8).hex(),
            variables=specs_to_wire(OTHER),
            plan=chance.choice([plan.fingerprint, self.target.plan.fingerprint]),
            servers=servers,
            wire_dtype=1,
            task_index=chance.randrange(4),
        )
        self.refused(0, f"{COORDINATOR}/Join", [self._maybe(request)])

    def _status_call(self) -> None:
        self.send(0, f"{COORDINATOR}/Status", [self.chance.choice([b"", self.mutate.noise()])])

    def _locate(self) -> None:
        """Take a server's place."""
        request = pb.LocateRequest(
            task_index=self.chance.randrange(4),
            servers=len(self.target.doors),
            address=self.chance.choice(["127.0.0.1:9", "", "[::1]:9", "h:70000"]),
            job=self.job,
        )
        self.send(0, f"{COORDINATOR}/Locate", [self._maybe(request)])

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            job=self.job, worker=self._name(), incarnation=0, session=self.chance.randbytes(16).hex()
        )

    def _session(self) -> None:
        chance = self.chance
        kinds = (
            pb.SessionRequest(ready=pb.Ready(holding=chance.randrange(9))),
            pb.SessionRequest(abandon=pb.Abandon(ticket=chance.randrange(100), reason="\x1b[2J")),
            pb.SessionRequest(leave=pb.Leave(reason="not mine to say")),
            pb.SessionRequest(done=pb.Done()),
            pb.SessionRequest(report=pb.Report(version=1, metrics={"loss": 0.0})),
        )
        first = pb.SessionRequest(hello=self._hello())
        messages = [self._maybe(first, 0.3), *(self._maybe(m) for m in chance.choices(kinds, k=3))]
        self.refused(0, f"{COORDINATOR}/Session", self._stream(messages))

    def header(self, server: int) -> shard_pb2.PushHeader:
        """Of a payload for somebody's open ticket, as far as one can know it."""
        return shard_pb2.PushHeader(
            job=self.job,
            worker=self._name(),
            ticket=self._ticket(),
            plan=self.target.plan.fingerprint,
            dtype=1,
            bytes=self.target.plan.shards[server].nbytes,
            after=self.chance.choice((0, 0, 1, 5)),
            membership_token=self._guess(),
        )

    def _guess(self) -> bytes:
        """Of a membership token."""
        return self.chance.choice((b"", bytes(16), self.chance.randbytes(16)))

    def _ticket(self) -> int:
        tickets = [worker.ticket for worker in self._status().workers if worker.ticket]
        return self.chance.choice([*tickets, *tickets, 0, 1, self.chance.randrange(200)])

    def _chunks(self, server: int) -> list[bytes]:
        """A payload of ones in pieces."""
        data = b"\x00\x00\x80\x3f" * self.target.plan.shards[server].elements
        cut = self.chance.choice((4, 16, len(data) or 1))
        return [data[at : at + cut] for at in range(0, len(data), cut)]

    def _push(self) -> None:
        server = self.server()
        first = shard_pb2.PushRequest(header=self.header(server))
        chunks = [self._maybe(shard_pb2.PushRequest(chunk=c), 0.1) for c in self._chunks(server)]
        self.refused(server, f"{SHARD}/Push", self._stream([self._maybe(first), *chunks]))

    def _pull_request(self) -> shard_pb2.PullRequest:
        return shard_pb2.PullRequest(
            job=self.job,
            ticket=self._ticket(),
            version=self.chance.randrange(30),
            worker=self._name(),
            membership_token=self._guess(),
            plan=self.target.plan.fingerprint,
            dtype=self.chance.choice((1, 1, 2, 3)),
            after=self.chance.choice((0, 0, 1, 5)),
        )

    def _pull(self) -> None:
        most = self.chance.choice((1, 1000))
        self.refused(self.server(), f"{SHARD}/Pull", [self._maybe(self._pull_request())], most=most)

    def _attach(self) -> shard_pb2.Attach:
        return shard_pb2.Attach(
            job=self.job,
            worker=self._name(),
            membership_token=self._guess(),
            plan=self.target.plan.fingerprint,
        )

    def _exchange(self) -> None:
        server, chance = self.server(), self.chance
        chunks = self._chunks(server)
        push = shard_pb2.ExchangeRequest(push=self.header(server), chunk=chunks[0] if chunks else None)
        if chance.random() < 0.5:
            commit = pb.Commit(ticket=push.push.ticket, ready=chance.random() < 0.5)
            push.commit.CopyFrom(pb.CommitRequest(hello=self._hello(), commit=commit))
        requests = (
            push,
            shard_pb2.ExchangeRequest(pull=self._pull_request()),
            shard_pb2.ExchangeRequest(attach=self._attach()),
            shard_pb2.ExchangeRequest(push=self.header(server)),
        )
        first = chance.choice(requests)
        rest = [shard_pb2.ExchangeRequest(chunk=c) for c in chunks[1:]] if first is push else []
        messages = [self._maybe(first), *(self._maybe(message, 0.1) for message in rest)]
        self.refused(server, f"{SHARD}/Exchange", self._stream(messages))

    def _follow(self) -> None:
        chance, servers = self.chance, len(self.target.doors)
        server = self.server()
        opening = shard_pb2.FollowRequest(
            open=shard_pb2.Open(
                job=chance.choice([self.job, "other"]),
                task_index=server,
                servers=servers,
                secret=bytes(32),
            )
        )
        others = (
            shard_pb2.FollowRequest(shutdown=shard_pb2.Shutdown(reason="\x1b[2Jstranger", exit_code=3)),
            shard_pb2.FollowRequest(
                decisions=shard_pb2.Decisions(decisions=[shard_pb2.Decision(index=5, note=True)])
            ),
            shard_pb2.FollowRequest(configure=shard_pb2.Configure(plan="", optimizer="[" * 1000)),
        )
        messages = [self._maybe(opening), self._maybe(chance.choice(others))]
        self.refused(server, f"{SHARD}/Follow", self._stream(messages))


class WireStranger(Stranger):
    """Also asks for what only a real server of gRPC answers."""

    def act(self) -> None:
        if self.chance.random() < 0.05:
            self.send(self.server(), self.chance.choice(BEYOND_GRPC), [self.mutate.noise()])
        elif self.chance.random() < 0.1:
            self._reset()
        else:
            super().act()

    def _reset(self) -> None:
        """Calls that are cancelled as soon as they are begun."""
        host = self.target.hosts[self.server()]
        with grpc.insecure_channel(host) as channel:
            method = channel.stream_stream(f"{SHARD}/Exchange", None, None)
            for _ in range(self.chance.choice((1, 30, 200))):
                self.tally.count("Exchange")
                method(iter([self.mutate.noise()])).cancel()
