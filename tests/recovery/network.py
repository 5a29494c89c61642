"""Streams between the servers of a job with replicas: what each carries, in order, and how they break.

Each server has a stream to each other one, as `replicas.link` has it, and each call of `Follow` is a stream of its own.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psserver.coordinator import Record
from psserver.replication.messages import Item, Message, merged
from psserver.service.replicas.bodies import Body
from psserver.shard import ShardState


class Copy(NamedTuple):
    """Everything behind the first `at` items of a log, in an epoch. `about`: all but the shard."""

    at: int
    epoch: int
    about: Any
    shard: ShardState


@dataclass(slots=True)
class Sent:
    """What a stream carries: a message with bodies, a copy, a digest, orders, what was executed of them, the end of a
    call of Follow, or that the streams from and to its sender broke. `part`: of the model, whose log or orders it is
    about."""

    part: int = 0
    message: Message | None = None
    bodies: Mapping[Item, Body] = field(default_factory=dict)
    copy: Copy | None = None
    # The epoch, the incarnation, the version, and what is compared.
    digest: tuple[int, int, int, bytes] | None = None
    # The epoch of the coordinator, the stream's number, and orders; None as it begins. What was executed of them.
    orders: tuple[int, int, list[Record] | None] | None = None
    executed: tuple[int, int] | None = None
    # The number of a stream of orders.
    ended: int = 0
    broke: bool = False


class Way(NamedTuple):
    """A stream. `call`: the number of a call of Follow, whose answers go the other way; 0: between servers."""

    sender: int
    to: int
    call: int = 0


class Network:
    """What is under way. `alive`: whether a server is there; `pick`: as of `ChoiceSource`.

    `streams`: those that carry something. `cuts`: between which servers nothing arrives.
    """

    def __init__(self, alive: Callable[[int], bool], pick: Callable[[int], int]) -> None:
        self._alive, self._pick = alive, pick
        self.streams: dict[Way, deque[Sent]] = {}
        self.cuts: set[tuple[int, int]] = set()
        # Pairs: what the first one sends to the second is lost, because it has not noticed that its streams broke.
        self._unaware: set[tuple[int, int]] = set()

    def clear(self) -> None:
        """A new generation: nothing of the one before arrives."""
        self.streams.clear()
        self.cuts.clear()
        self._unaware.clear()

    def up(self, sender: int, to: int) -> bool:
        """Whether the sender takes its stream to another server for one that stands."""
        return self._alive(to) or (sender, to) in self._unaware

    def post(self, way: Way, sent: Sent) -> None:
        sender, to, _ = way
        if not (self._alive(to) and self._alive(sender)) or (sender, to) in self._unaware:
            return
        stream = self.streams.get(way)
        if stream is None:
            self.streams[way] = deque([sent])
        elif sent.message is None or not self._merge(stream[-1], sent, sent.message):
            stream.append(sent)

    def _merge(self, before: Sent, sent: Sent, message: Message) -> bool:
        """Say both with one message, as a link does, if that waits to be sent. It may be under way."""
        if before.message is None or before.part != sent.part or self._pick(2):
            return False
        both = merged(before.message, message)
        if both is None:
            return False
        before.message, before.bodies = both, {**before.bodies, **sent.bodies}
        return True

    def take(self, way: Way, *, late: bool) -> Sent | None:
        """Return the next thing that arrives. `late`: it may be one that others overtake; then None.

        A copy goes in many pieces, with messages between them, and a broken stream may be noticed behind what comes
        on another one.
        """
        stream = self.streams[way]
        sent = stream.popleft()
        if late and stream and (sent.broke or sent.copy is not None) and self._pick(4) == 3:
            stream.append(sent)
            return None
        if not stream:
            del self.streams[way]
        if sent.broke:
            self._unaware.discard((way.to, way.sender))
        return sent

    def ready(self, stalled: set[int]) -> list[Way]:
        """Return the streams of which something may arrive."""
        if not stalled and not self.cuts:
            return list(self.streams)
        return [
            way for way in self.streams if way.to not in stalled and (way.sender, way.to) not in self.cuts
        ]

    # Breaking

    def cut(self, sender: int, to: int) -> None:
        self.cuts.add((sender, to))

    def heal(self, *, broken: bool) -> None:
        """The network is whole again: what was under way arrives, or the streams were given up meanwhile."""
        if broken:
            for sender, to in sorted({(min(cut), max(cut)) for cut in self.cuts}):
                self._lose(sender, to)
                self._notice(sender, to)
                self._notice(to, sender)
        self.cuts.clear()

    def die(self, server: int, others: int) -> None:
        """A process is gone, and its streams with it. All of so many servers notice, one after the other."""
        for other in range(others):
            if other != server:
                self._lose(server, other)
                self._unaware.discard((server, other))
                self._notice(other, server)

    def _lose(self, one: int, other: int) -> None:
        """What is under way between two servers is lost."""
        for way in [way for way in self.streams if {way.sender, way.to} == {one, other}]:
            del self.streams[way]

    def _notice(self, server: int, other: int) -> None:
        """A server finds out that its streams from and to another one broke; until then it sends in vain."""
        if self._alive(server):
            self._unaware.add((server, other))
            self.streams[Way(other, server)] = deque([Sent(broke=True)])
