"""Members that lie: they joined like any worker, hold tickets, and then say, push and write what they like."""

import math
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import grpc
import numpy as np

from pswire.messages import specs_to_wire
from pswire.model.tables import tables_to_json
from pswire.transport import segments
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FramedSocket, SocketError
from pswire.transport.segments import SegmentError
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests import patience
from tests.attack.doors import Broken, Refusal
from tests.attack.hostile_rows import Behind, behind
from tests.attack.lines import HEAD
from tests.attack.target import COORDINATOR, SHARD, Attacker

# Seconds that a liar waits for an answer that it needs; it is free to go on without.
PATIENCE = 0.3
BREAK = object()


class Session:
    """A liar's session stream: what it says goes out as it is; what it hears is kept."""

    def __init__(self, liar: "Liar", first: bytes) -> None:
        self.events: queue.SimpleQueue[pb.SessionEvent | None] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._liar = liar
        self.say(first)
        self._thread = threading.Thread(target=self._hear, name="liar", daemon=True)
        self._thread.start()

    def say(self, message: bytes) -> None:
        self._liar.tally.count("Session")
        self._out.put(message)

    def _requests(self) -> Iterator[bytes]:
        while (message := self._out.get()) is not None:
            if message is BREAK:
                raise Broken
            yield message

    def _hear(self) -> None:
        try:
            door = self._liar.target.doors[0]
            for reply in door.call(f"{COORDINATOR}/Session", self._requests(), 60.0):
                for event in pb.SessionReply.FromString(reply).events:
                    self.events.put(event)
        except (Refusal, grpc.RpcError) as ending:
            self._liar.tally.answered(ending.code.name if isinstance(ending, Refusal) else "BROKEN")
        finally:
            self.events.put(None)

    def heard(self, kind: str) -> Any:
        """The next event of this kind; None when it does not come, or the session ends first."""
        try:
            while (event := self.events.get(timeout=PATIENCE)) is not None:
                if event.WhichOneof("event") == kind:
                    return getattr(event, kind)
        except queue.Empty:
            return None
        # For whoever asks after the end.
        self.events.put(None)
        return None

    def end(self, *, broken: bool = False) -> None:
        self._out.put(BREAK if broken else None)
        self._out.put(None)
        self._thread.join(patience.PATIENCE)
        assert not self._thread.is_alive(), "a session goes on after its stream of requests has ended"


class Liar(Attacker):
    """Lives several lives. `largest`: of the finite numbers that it pushes."""

    def __init__(self, *args: Any, largest: float = 1.0) -> None:
        super().__init__(*args)
        # Another one in each life.
        self.name = ""
        self._largest = largest
        self.token = ""
        self.reply = pb.JoinReply()
        self.session: Session | None = None
        self.grant: pb.Grant | None = None
        self._memory: list[np.ndarray] = []

    def act(self) -> None:
        """One life: join, some acts, an end."""
        if not self._join():
            # Told to wait, most likely; or slow to be welcome.
            self._end()
            threading.Event().wait(0.05)
            return
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (8, self._step),
            (6, self._babble),
            (3, self._abandon),
            (2, self._report),
            (2, self._epoch),
            (4, self._pull),
            (5, self._exchange),
            (3, self._share),
            (2, self._line),
            (1, self._again),
            (3, self._steal),
        )
        weights, functions = zip(*acts, strict=True)
        try:
            for act in self.chance.choices(functions, weights, k=self.chance.choice((1, 5, 20))):
                if not self.tally.enough:
                    act()
        finally:
            self._end()

    # Life

    def _join(self) -> bool:
        plan, servers = self.target.plan, len(self.target.doors)
        self.name = f"liar-{self.chance.randrange(10**6)}"
        self.token = self.chance.randbytes(8).hex()
        request = pb.JoinRequest(
            worker=self.name,
            session=self.token,
            variables=specs_to_wire(plan.variables),
            plan=plan.fingerprint,
            servers=servers,
            wire_dtype=1,
            tables=tables_to_json(plan.tables),
        )
        data = request.SerializeToString()
        if self.chance.random() < 0.3:
            # Not a name of another member: who may come back under a name is another matter.
            self.mutate.message(request)
            request.worker = self.name
            request.task_index = self.chance.choice((5, 2**20 - 1, 2**32 - 1))
            self.send(0, f"{COORDINATOR}/Join", [request.SerializeToString()])
        replies = self.send(0, f"{COORDINATOR}/Join", [data])
        if not replies:
            return False
        self.reply = pb.JoinReply.FromString(replies[0])
        self.session = Session(self, pb.SessionRequest(hello=self._hello()).SerializeToString())
        return self.session.heard("welcome") is not None

    def _hello(self) -> pb.Hello:
        reply = self.reply
        return pb.Hello(job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=self.token)

    def _end(self) -> None:
        session, self.session = self.session, None
        self.grant, self._memory = None, []
        if session is None:
            return
        if self.chance.random() < 0.6:
            session.say(pb.SessionRequest(leave=pb.Leave(reason=self.mutate.text())).SerializeToString())
        session.end(broken=self.chance.random() < 0.5)

    def _again(self) -> None:
        """Another stream of the same member takes the place of its own."""
        assert self.session is not None
        before = self.session
        self.session = Session(self, pb.SessionRequest(hello=self._hello()).SerializeToString())
        self.session.heard("welcome")
        before.end()

    def say(self, **message: Any) -> None:
        assert self.session is not None
        self.session.say(pb.SessionRequest(**message).SerializeToString())

    # Words

    def _ready(self) -> bool:
        """It holds a ticket."""
        if self.grant is None:
            self.say(ready=pb.Ready())
            assert self.session is not None
            grant = self.session.heard("grant")
            self.grant = grant if grant is not None and not grant.initialise else None
        return self.grant is not None

    def _commit(self, receipts: list[bytes]) -> pb.Commit:
        assert self.grant is not None
        times = pb.Times(
            pull=self.chance.choice((0.0, 1e-6, 0.1, 1e9)), compute=self.chance.choice((0.0, 1e-6, 5.0))
        )
        return pb.Commit(
            ticket=self.grant.ticket,
            batch=self.chance.choice((0, 1, 7, 2**48 - 1)),
            samples=self.chance.choice((0, 1, 32, 2**48 - 1)),
            loss=self.chance.choice((0.5, -1e300, 1e300, math.nan, math.inf)),
            receipts=receipts,
            ready=self.chance.random() < 0.2,
            times=times if self.chance.random() < 0.5 else None,
        )

    def _babble(self) -> None:
        """Words in no order, most of them changed."""
        chance = self.chance
        kinds = (
            pb.SessionRequest(ready=pb.Ready(holding=chance.randrange(50))),
            pb.SessionRequest(abandon=pb.Abandon(ticket=chance.randrange(100), reason=self.mutate.text())),
            pb.SessionRequest(report=pb.Report(version=1, metrics={"loss": 0.0})),
            pb.SessionRequest(hello=self._hello()),
            pb.SessionRequest(done=pb.Done()) if chance.random() < 0.003 else pb.SessionRequest(),
        )
        assert self.session is not None
        for message in chance.choices(kinds, k=chance.choice((1, 5, 50))):
            if chance.random() < 0.6:
                # It stays until it ends; and it may not say that it has no more data in passing.
                self.mutate.message(message)
                message.ClearField("leave")
                message.ClearField("done")
            self.session.say(message.SerializeToString())

    def _abandon(self) -> None:
        if self._ready():
            assert self.grant is not None
            self.say(abandon=pb.Abandon(ticket=self.grant.ticket, reason=self.mutate.text()))
            self.grant = None

    def _report(self) -> None:
        name = self.chance.choice(("loss", "accuracy", self.mutate.text()))
        self.say(report=pb.Report(version=1, metrics={name: self.chance.choice((0.5, 1e300, math.nan))}))

    def _epoch(self) -> None:
        """Ends of epochs that it never had: jumps, other metrics, any numbers."""
        first = self.chance.choice((0, 1, 2**40))
        for number in range(first, first + self.chance.choice((1, 3, 8))):
            request = pb.GatherEpochRequest(
                job=self.reply.job,
                worker=self.reply.worker,
                incarnation=self.reply.incarnation,
                membership_token=self.reply.membership_token,
                number=number * self.chance.choice((1, 1, 1000)),
                layout=self.chance.choice(("m", "other")),
                sums=[self.chance.choice((0.0, 1e300, math.nan))] * self.chance.choice((0, 1, 2, 1000)),
                values={"val_loss": self.chance.choice((-1e300, math.nan))},
            )
            if self.chance.random() < 0.3:
                self.mutate.message(request)
            self.send(0, f"{COORDINATOR}/GatherEpoch", [request.SerializeToString()])

    # Payloads

    def _values(self, server: int) -> np.ndarray:
        elements = self.target.plan.shards[server].elements
        values = np.array([self.chance.gauss(0, self._largest) for _ in range(elements)], np.float32)
        if elements and self.chance.random() < 0.1:
            values[self.chance.randrange(elements)] = self.chance.choice((math.nan, math.inf, -math.inf))
        return values

    def _header(self, server: int) -> shard_pb2.PushHeader:
        assert self.grant is not None
        shard = self.target.plan.shards[server]
        return shard_pb2.PushHeader(
            job=self.reply.job,
            worker=self.reply.worker,
            ticket=self.grant.ticket,
            plan=self.target.plan.fingerprint,
            dtype=1,
            bytes=shard.nbytes,
            after=self.grant.index,
            incarnation=self.reply.incarnation,
            membership_token=self.reply.membership_token,
        )

    def _rows(self, server: int) -> Behind:
        """What stands behind a payload; nothing where the model has no tables."""
        plan = self.target.plan
        if not plan.tables or self.chance.random() < 0.2:
            return Behind((), (), b"")
        return behind(self.chance, plan, server, self._largest)

    def _push_messages(self, server: int) -> list[bytes]:
        rows, header = self._rows(server), self._header(server)
        header.rows[:], header.next_rows[:] = rows.rows, rows.ahead
        data = self._values(server).tobytes() + rows.data
        cut = self.chance.choice((8, 64, len(data) or 1))
        messages = [shard_pb2.PushRequest(header=header).SerializeToString()]
        for at in range(0, len(data), cut):
            messages.append(shard_pb2.PushRequest(chunk=data[at : at + cut]).SerializeToString())
        return messages

    def _step(self) -> None:
        """A unit of work: whole, or with something wrong on the way."""
        if not self._ready():
            return
        receipts = []
        for server in range(len(self.target.doors)):
            messages = self._push_messages(server)
            if self.chance.random() < 0.3:
                self.send(server, f"{SHARD}/Push", self._cut(self.mutate.sequence(messages)))
            replies = self.send(server, f"{SHARD}/Push", messages)
            receipts += [shard_pb2.PushReply.FromString(reply).receipt for reply in replies]
        commit = self._commit(receipts)
        if self.chance.random() < 0.3:
            self.mutate.message(commit)
        request = pb.CommitRequest(hello=self._hello(), commit=commit)
        for _ in range(self.chance.choice((1, 1, 1, 3))):
            self.send(0, f"{COORDINATOR}/Commit", [request.SerializeToString()])
        self.grant = None

    def _steal(self) -> None:
        """A payload for the ticket of an honest worker, with the proof of another membership."""
        held = [w for w in self._status().workers if w.ticket and w.name in self.target.honest]
        if not held or not self._ready():
            return
        victim, server = self.chance.choice(held), self.server()
        assert self.grant is not None
        own, self.grant = self.grant, pb.Grant(ticket=victim.ticket, index=self.grant.index)
        messages = self._push_messages(server)
        if self.chance.random() < 0.5:
            header = shard_pb2.PushRequest.FromString(messages[0])
            header.header.worker = victim.name
            messages[0] = header.SerializeToString()
        if self.send(server, f"{SHARD}/Push", messages):
            self.tally.wrong(
                f"a payload of {self.name} was taken for ticket {victim.ticket} of {victim.name}"
            )
        self.grant = own

    def _cut(self, messages: list[bytes]) -> Iterator[bytes]:
        yield from messages
        if self.chance.random() < 0.3:
            raise Broken

    def _pull(self) -> None:
        if not self._ready():
            return
        assert self.grant is not None
        request = shard_pb2.PullRequest(
            job=self.reply.job,
            ticket=self.grant.ticket,
            version=self.grant.version,
            plan=self.target.plan.fingerprint,
            dtype=self.chance.choice((1, 2, 3)),
            after=self.grant.index,
            worker=self.reply.worker,
            incarnation=self.reply.incarnation,
            membership_token=self.reply.membership_token,
        )
        if self.chance.random() < 0.5:
            self.mutate.message(request)
        self.send(
            self.server(), f"{SHARD}/Pull", [request.SerializeToString()], most=self.chance.choice((1, 99))
        )

    def _row_pulls(self, server: int) -> list[shard_pb2.ExchangeRequest]:
        """Ask for rows, with a ticket or without, or for a whole table."""
        assert self.grant is not None
        rows = self._rows(server)
        pull = shard_pb2.PullRequest(
            job=self.reply.job,
            ticket=self.chance.choice((0, self.grant.ticket)),
            version=self.grant.version,
            plan=self.target.plan.fingerprint,
            dtype=self.chance.choice((1, 2, 3)),
            after=self.grant.index,
            worker=self.reply.worker,
            incarnation=self.reply.incarnation,
            membership_token=self.reply.membership_token,
            rows=rows.ahead,
            rows_only=self.chance.random() < 0.8,
            table=self.chance.choice((0, 0, 0, 1, len(self.target.plan.tables), 77)),
        )
        keys = rows.data[8 * sum(rows.rows) : 8 * (sum(rows.rows) + sum(rows.ahead))]
        request = shard_pb2.ExchangeRequest(pull=pull)
        if keys:
            request.chunk = keys
        return [request]

    def _exchanges(self, server: int) -> list[bytes]:
        """Requests for one stream of Exchange, one of them with this life's ticket."""
        assert self.grant is not None
        values, rows = self._values(server), self._rows(server)
        push = shard_pb2.ExchangeRequest(push=self._header(server), chunk=values.tobytes())
        push.push.rows[:], push.push.next_rows[:] = rows.rows, rows.ahead
        if len(self.target.doors) == 1 and self.chance.random() < 0.7:
            push.commit.CopyFrom(pb.CommitRequest(hello=self._hello(), commit=self._commit([])))
        messages = [push]
        if rows.data:
            messages.append(shard_pb2.ExchangeRequest(chunk=rows.data))
        if self.target.plan.tables and self.chance.random() < 0.5:
            messages = [*self._row_pulls(server), *messages]
        if self.chance.random() < 0.6:
            self.mutate.message(self.chance.choice(messages))
        self.grant = None
        return [message.SerializeToString() for message in messages]

    def _exchange(self) -> None:
        if self._ready():
            server = self.server()
            self.send(server, f"{SHARD}/Exchange", self._cut(self._exchanges(server)), seconds=PATIENCE)

    # The line, and shared memory

    def _claim(self) -> shard_pb2.Attach:
        assert self.grant is not None
        return shard_pb2.Attach(
            job=self.reply.job,
            worker=self.reply.worker,
            incarnation=self.reply.incarnation,
            membership_token=self.reply.membership_token,
            plan=self.target.plan.fingerprint,
            after=self.grant.index,
        )

    def _offer(self, server: int) -> shard_pb2.Attached:
        """Where the server takes connections. Raises Refusal."""
        path, door = f"{SHARD}/Exchange", self.target.doors[server]
        ask = shard_pb2.ExchangeRequest(attach=self._claim()).SerializeToString()
        for reply in door.call(path, self.counted(path, [ask]), 1.0):
            return shard_pb2.ExchangeReply.FromString(reply).attached
        return shard_pb2.Attached()

    def _share(self) -> None:
        """On one connection: write into what was lent, push slots, and write on after the commit."""
        if not self._ready():
            return
        server = self.server()
        try:
            offer = self._offer(server)
            if not offer.socket:
                return
            connection, answer = handshake.connect_unix(offer.socket, self._claim().SerializeToString())
        except Refusal as refusal:
            self.tally.answered(refusal.code.name)
            return
        except SocketError:
            self.tally.answered("CUT")
            return
        connection.limit(1.0)
        with closing(connection), suppress(SocketError):
            self._map(connection, shard_pb2.Attached.FromString(answer))
            for _ in range(self.chance.choice((1, 3))):
                self._scribble(server)
                if self.grant is None and not self._ready():
                    return
                connection.send([self._slot(server)])
                self._scribble(server)
                reply = connection.receive()
                if reply is None or reply[1]:
                    self.tally.answered("CUT")
                    break
                found = shard_pb2.ExchangeReply.FromString(bytes(reply[0]))
                if found.HasField("located"):
                    self._overwrite(connection, found.located)
                self.tally.answered("OK")
        self._scribble(server)

    def _map(self, connection: FramedSocket, attached: shard_pb2.Attached) -> None:
        """Map what was lent. Raises SocketError."""
        for nbytes in (8, attached.slot_bytes):
            (descriptor,) = connection.descriptors(1)
            try:
                memory = segments.map_descriptor(descriptor, nbytes, writable=True)
            except SegmentError:
                # A slot that was sealed: nothing to write into.
                self.tally.answered("NO SEGMENT")
                continue
            self._memory.append(np.frombuffer(memory, np.uint8, offset=segments.HEADER))

    def _overwrite(self, connection: FramedSocket, located: shard_pb2.Located) -> None:
        """Write into a published version. It was lent for reading. Raises SocketError."""
        self.tally.count("shared memory")
        (descriptor,) = connection.descriptors(1)
        try:
            memory = segments.map_descriptor(descriptor, located.bytes, writable=True)
        except SegmentError:
            return
        segments.floats(memory)[:] = 777
        self.tally.wrong(f"{self.name} wrote into a published version")

    def _scribble(self, server: int) -> None:
        """Words and numbers into memory that is shared: nothing there may be trusted by the server."""
        for memory in self._memory:
            if memory.size and self.chance.random() < 0.7:
                self.tally.count("shared memory")
                # Larger numbers would be a member's right where no policy is robust, and end in a model of NaN.
                values = self._values(server).view(np.uint8)[: memory.size]
                memory[: values.size] = values

    def _slot(self, server: int) -> bytes:
        request = shard_pb2.ExchangeRequest(push=self._header(server))
        if len(self.target.doors) == 1 and self.chance.random() < 0.5:
            request.commit.CopyFrom(pb.CommitRequest(hello=self._hello(), commit=self._commit([])))
        if self.chance.random() < 0.2:
            self.mutate.message(request)
        self.grant = None
        return request.SerializeToString()

    def _line(self) -> None:
        """Ask where the server takes connections, and say things on one."""
        if not self._ready():
            return
        server, claim = self.server(), self._claim()
        try:
            offer = self._offer(server)
        except Refusal as refusal:
            self.tally.answered(refusal.code.name)
            return
        if self.chance.random() < 0.2:
            self.mutate.message(claim)
        self._speak(server, offer, claim.SerializeToString())

    def _speak(self, server: int, offer: shard_pb2.Attached, claim: bytes) -> None:
        kind = "Unix socket" if offer.socket and self.chance.random() < 0.7 else "data port"
        try:
            with self._connected(kind, offer) as connection:
                connection.sendall(HEAD.pack(len(claim), 0) + claim)
                connection.recv(HEAD.size)
                messages = self._exchanges(server)
                if self.chance.random() < 0.4:
                    messages = self.mutate.sequence(messages)
                for message in messages:
                    self.tally.count(kind)
                    frame = HEAD.pack(len(message), 0) + message
                    connection.sendall(self.mutate.data(frame) if self.chance.random() < 0.3 else frame)
                    if self.chance.random() < 0.7:
                        connection.recv(1000)
        except OSError:
            self.tally.answered("CUT")

    @staticmethod
    def _connected(kind: str, offer: shard_pb2.Attached) -> socket.socket:
        if kind == "data port":
            return socket.create_connection(("127.0.0.1", offer.port), timeout=PATIENCE)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(PATIENCE)
        made.connect(f"\0{offer.socket}")
        return made
