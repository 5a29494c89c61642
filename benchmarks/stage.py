"""The peers of one benchmark run and everything they share, started when first used and ended together."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from benchmarks import kinds
from benchmarks.loads import Load
from benchmarks.measures import connections
from benchmarks.measures.connections import Connections
from benchmarks.measures.limits import Limits
from benchmarks.measures.rounds import Mode, Row, measure
from benchmarks.peers import Peer, tls
from benchmarks.peers.ours import Alone, Ours, WorkerPool
from benchmarks.peers.theirs import Clusters, Theirs
from pswire.security.files import TlsFiles


class Stage:
    """A context manager; leaving it leaves no process behind. `wanted`: names of peers, all when empty.

    With `other`, another checkout of this repository, `pairs` are its peers and ours of the same kind.
    """

    def __init__(
        self,
        mode: Mode,
        logs: Path,
        say: Callable[[str], None],
        wanted: Iterable[str] = (),
        other: Path | None = None,
    ) -> None:
        self.mode = mode
        self.say = say
        self._logs = logs
        self._wanted = set(wanted)
        self._other = other
        # Certificates of a server and of workers, once they are made.
        self._identities: tuple[TlsFiles, TlsFiles] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.limits = self._stack.enter_context(Limits(self._logs))
        self._pool = WorkerPool(self._logs)
        self._stack.callback(self._pool.close)
        self._clusters = Clusters(self._logs)
        self._stack.callback(self._clusters.close)
        self.peers = {
            peer.name: peer for peer in (*self._theirs(), *self._ours(self._pool), *self._encrypted())
        }
        self.peers[kinds.ALONE] = Alone(kinds.ALONE, kinds.LABELS[kinds.ALONE], self._pool)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def pairs(self) -> list[tuple[Peer, Peer]]:
        """Ours of each wanted kind, here and in the other checkout."""
        assert self._other is not None
        logs = self._logs / "other"
        pool = WorkerPool(logs, self._other)
        self._stack.callback(pool.close)
        there = {peer.name: peer for peer in self._ours(pool, logs, kinds.OTHER)}
        return [(peer, there[peer.name + kinds.OTHER]) for peer in self.choose(*kinds.OURS)]

    def choose(self, *names: str) -> list[Peer]:
        """Those of `names` that are there and wanted."""
        there = [self.peers[name] for name in names if name in self.peers]
        return [peer for peer in there if not self._wanted or peer.name in self._wanted]

    def measure(self, load: Load, peers: Iterable[Peer]) -> Row:
        return measure(load, list(peers), self.mode, self.limits, self.say)

    def _theirs(self) -> list[Peer]:
        peers: list[Peer] = [Theirs(kinds.TF, kinds.LABELS[kinds.TF], self._clusters)]
        if self.mode.packed:
            peers.append(Theirs(kinds.TF_PACKED, kinds.LABELS[kinds.TF_PACKED], self._clusters, kinds.PACK))
        return peers

    def connections(self) -> Connections | None:
        """What connecting costs, where some peer with TLS is wanted."""
        if not self._with_tls:
            return None
        rounds, seconds = self.mode.rounds, self.mode.seconds
        return connections.measure(*self._certificates(), self._logs, rounds, seconds, self.say)

    @property
    def _with_tls(self) -> bool:
        return any(name in self._wanted or not self._wanted for name in kinds.OVER_TLS)

    def _certificates(self) -> tuple[TlsFiles, TlsFiles]:
        """In a folder that nobody else can read, and that goes with the stage."""
        if self._identities is None:
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="bench-")))
            self._identities = tls.make(folder)
        return self._identities

    def _encrypted(self) -> list[Peer]:
        if not self._with_tls:
            return []
        server, worker = self._certificates()
        peers: list[Peer] = []
        for name, plain in kinds.OVER_TLS.items():
            transport, dtype = kinds.OURS[plain]
            connect = {"wire_dtype": dtype, "transport": transport, **tls.keywords(worker)}
            options = ["--transport", transport, *tls.options(server)]
            peer = Ours(name, kinds.LABELS[name], self._pool, self._logs, connect, options)
            self._stack.callback(peer.close)
            peers.append(peer)
        return peers

    def _ours(self, pool: WorkerPool, logs: Path | None = None, suffix: str = "") -> list[Peer]:
        peers: list[Peer] = []
        for name, (transport, dtype) in kinds.OURS.items():
            connect, server = {"wire_dtype": dtype, "transport": transport}, ["--transport", transport]
            peer = Ours(name + suffix, kinds.LABELS[name] + suffix, pool, logs or self._logs, connect, server)
            self._stack.callback(peer.close)
            peers.append(peer)
        return peers
