"""The peers of one benchmark run and everything they share, started when first used and ended together."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from benchmarks import kinds
from benchmarks.peers import Peer, tls
from benchmarks.peers.checkout import Checkout
from benchmarks.peers.child import HERE, Place
from benchmarks.peers.ours import Ours, WorkerPool
from benchmarks.peers.theirs import Clusters, Theirs
from pswire.security.files import TlsFiles
from tests.machines.network import Network


class Stage:
    """A context manager; leaving it leaves no process behind.

    With `network`, servers run on its first host and each worker on a host of its own.
    """

    def __init__(self, logs: Path, network: Network | None = None) -> None:
        self._logs = logs
        self._places = [] if network is None else [host.place for host in network.hosts]
        self._server_place: Place = self._places[0] if self._places else HERE
        # Certificates of a server and of workers, once they are made.
        self._identities: tuple[TlsFiles, TlsFiles] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._pool = WorkerPool(self._logs, places=self._places[1:])
        self._stack.callback(self._pool.close)
        self._clusters = Clusters(self._logs, self._places)
        self._stack.callback(self._clusters.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def peers(self, names: Iterable[str]) -> list[Peer]:
        """Peers by their names in `kinds`."""
        return [self._peer(name) for name in names]

    def pairs(self, names: Iterable[str], other: Path) -> list[tuple[Peer, Peer]]:
        """Ours of each name, here and in the checkout `other`."""
        checkout = Checkout(other, self._logs / "other")
        self._stack.callback(checkout.close)
        every = {**kinds.OURS, **kinds.CODECS, **kinds.OVER_TLS}
        return [
            (
                self._peer(name),
                checkout.peer(f"{name} there", kinds.LABELS[name], *every[name], name in kinds.OVER_TLS),
            )
            for name in names
        ]

    def _peer(self, name: str) -> Peer:
        label = kinds.LABELS[name]
        if name == kinds.TF:
            return Theirs(name, label, self._clusters)
        if name in kinds.OVER_TLS:
            server, worker = self._certificates()
            return self._ours(name, *kinds.OVER_TLS[name], tls.keywords(worker), tls.options(server))
        return self._ours(name, *{**kinds.OURS, **kinds.CODECS}[name], {}, [])

    def _ours(
        self, name: str, transport: str, dtype: str, connect: Mapping[str, str], options: list[str]
    ) -> Peer:
        if self._places:
            options = ["--bind", self._server_place.address, "--insecure"]
        peer = Ours(
            name,
            kinds.LABELS[name],
            self._pool,
            self._logs,
            {"wire_dtype": dtype, "transport": transport, **connect},
            ["--transport", transport, *options],
            self._server_place,
        )
        self._stack.callback(peer.close)
        return peer

    def _certificates(self) -> tuple[TlsFiles, TlsFiles]:
        """In a folder that nobody else can read, and that goes with the stage."""
        if self._identities is None:
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="bench-")))
            self._identities = tls.make(folder)
        return self._identities
