"""What attackers know and count: the servers' methods, the job, who is in it; and how many messages they sent."""

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from pswire.model.plan import Plan
from pswire.v1 import coordinator_pb2 as pb
from tests.attack.doors import Door, Refusal
from tests.attack.mutations import Mutator
from tests.patience import PATIENCE

COORDINATOR, SHARD = "/pswire.v1.Coordinator", "/pswire.v1.Shard"


@dataclass
class Tally:
    """Messages by RPC (or line, or memory), and answers by status code. Any thread may count.

    `most`: after so many an attacker begins nothing new.
    """

    most: int
    messages: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    # What was answered and should have been refused.
    wrongs: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, number: int = 1) -> None:
        with self._lock:
            self.messages[kind] += number

    def answered(self, code: str) -> None:
        with self._lock:
            self.answers[code] += 1

    def wrong(self, what: str) -> None:
        with self._lock:
            self.wrongs = [*self.wrongs, what][:5]

    @property
    def enough(self) -> bool:
        return self.messages.total() >= self.most

    @property
    def share(self) -> float:
        return min(1.0, self.messages.total() / self.most)


@dataclass(frozen=True)
class Line:
    """Where a server listens for payloads beside gRPC."""

    name: str
    port: int


@dataclass(frozen=True)
class Target:
    """The cluster under attack. `lines`: of each server; `hosts`: where gRPC listens."""

    doors: Sequence[Door]
    hosts: Sequence[str]
    lines: Sequence[Line]
    honest: Sequence[str]
    plan: Plan


class Attacker:
    """One thread's attacks: `chance` draws all of them, `tally` counts them."""

    def __init__(self, target: Target, tally: Tally, seed: str) -> None:
        self.target, self.tally = target, tally
        self.chance = random.Random(seed)
        self.mutate = Mutator(self.chance, [*target.honest, target.plan.fingerprint])
        self.job = self._status().job
        self.mutate.words.append(self.job)

    def _status(self) -> pb.StatusReply:
        while True:
            try:
                (reply,) = self.target.doors[0].call(f"{COORDINATOR}/Status", [b""], PATIENCE)
                return pb.StatusReply.FromString(reply)
            except Refusal as refusal:
                # gRPC refuses streams of a connection that resets many, as attackers do.
                if refusal.code not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE):
                    raise

    def send(
        self, server: int, path: str, requests: Iterable[bytes], seconds: float = 0.3, most: int = 10_000
    ) -> list[bytes]:
        """The replies to a call, up to `most`; a refusal is what an attacker expects."""
        replies: list[bytes] = []
        calling = self.target.doors[server].call(path, self.counted(path, requests), seconds)
        try:
            for reply in calling:
                replies.append(reply)
                if len(replies) >= most:
                    break
            self.tally.answered("OK")
        except Refusal as refusal:
            self.tally.answered(refusal.code.name)
        except grpc.RpcError:
            self.tally.answered("BROKEN")
        finally:
            calling.close()  # type: ignore[attr-defined]
        return replies

    def counted(self, path: str, requests: Iterable[bytes]) -> Iterator[bytes]:
        kind = path.rpartition("/")[2]
        for request in requests:
            self.tally.count(kind)
            yield request

    def act(self) -> None:
        """A call or a few."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything but the doors, which are others' too."""

    def server(self) -> int:
        return self.chance.randrange(len(self.target.doors))
