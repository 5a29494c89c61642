"""Rows of the table of links: every peer on every load over one link, with bytes counted and the floor computed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.links.bare import BarePeer, NotShaped, Proof
from benchmarks.links.network import FAST, Counters, Network, bits_per_second
from benchmarks.loads import MODEL_SHAPES, Load
from benchmarks.measures.rounds import rotated
from benchmarks.measures.samples import Samples, collected
from benchmarks.peers import Burst, Peer
from benchmarks.peers.child import Place
from benchmarks.peers.ours import Ours, WorkerPool
from benchmarks.peers.theirs import Clusters, Theirs
from pswire.model.plan import make_plan
from pswire.model.variables import VariableSpec
from pswire.transport.wire import wire_named

LOADS = (
    Load("17M parameters, no computation", shapes=MODEL_SHAPES["mlp"]),
    Load("17M parameters, no computation, 2 workers", shapes=MODEL_SHAPES["mlp"], workers=2),
    Load("MLP, 17M parameters", model="mlp"),
    Load("MLP, 17M parameters, 2 workers", model="mlp", workers=2),
    Load("CNN on digits", model="cnn"),
)
TF, TF_BF16 = "TF PSS, float32", "TF PSS, bfloat16"
# Ours: transport and wire_dtype, by the name in the table.
OURS = {
    f"{transport}, {dtype}": (transport, dtype)
    for transport, dtype in (
        ("grpc", "float32"),
        ("socket", "float32"),
        ("socket", "bfloat16"),
        ("grpc", "int8/bfloat16"),
        ("socket", "int8/bfloat16"),
        ("socket", "int4/bfloat16"),
        ("socket", "top-k/bfloat16"),
        ("grpc", "int8/int8"),
        ("socket", "int8/int8"),
        ("socket", "int4/int4"),
        ("socket", "top-k/top-k"),
    )
}
# As the row without it, but under `async`: the next version comes while a worker computes and pushes.
AHEAD = {
    "socket, int8/int8, prefetch": ("socket", "int8/int8"),
    "socket, float32, prefetch": ("socket", "float32"),
}
# A row whose share of the link is larger was not measured on that link.
MOST_SHARE = 1.05
# For each step that a burst has at least: a slow link makes steps of many seconds.
LEAST_STEPS = 2


@dataclass
class LinkRow:
    """What one peer did on one load, a sample for each round. `floor`: seconds that the link alone needs for a step."""

    rate: str
    load: Load
    peer: str
    floor: float
    bursts: list[Burst] = field(default_factory=list)
    moved: list[Counters] = field(default_factory=list)

    @property
    def seconds(self) -> Samples:
        """Of one step of one worker."""
        return collected([burst.seconds * self.load.workers / burst.steps for burst in self.bursts])

    def megabytes(self) -> tuple[float, float]:
        """Frames that one step moves up to the server and down from it, in MB, over all rounds."""
        steps = sum(burst.steps for burst in self.bursts)
        up, down = sum(each.received for each in self.moved), sum(each.sent for each in self.moved)
        return up / steps / 1e6, down / steps / 1e6

    def as_json(self) -> dict[str, Any]:
        up, down = self.megabytes()
        return {
            "rate": self.rate,
            "load": self.load.name,
            "workers": self.load.workers,
            "peer": self.peer,
            "floor_seconds": self.floor,
            "step_seconds": {"samples": list(self.seconds.values), "spread": self.seconds.spread},
            "megabytes_up": up,
            "megabytes_down": down,
        }


def payload_bytes(load: Load, dtype: str) -> tuple[int, int]:
    """Bytes of a gradient on its way up, of the weights on their way down."""
    wire = wire_named(dtype)
    plan = make_plan([VariableSpec(f"v{n}", shape) for n, shape in enumerate(load.weights)], load.servers)
    up = sum(wire.up.size(shard) for shard in plan.shards)
    # A worker of the benchmark is one version behind, so it is sent one change.
    return up, sum((wire.deltas or wire.down).size(shard) for shard in plan.shards)


def floor(load: Load, dtype: str, network: Network, *, ahead: bool = False) -> float:
    """Seconds of one step of each worker, all over the server's link.

    One worker uses one direction after the other; several, and one that fetches `ahead`, may use both at once.
    """
    both = payload_bytes(load, dtype)
    each = max(both) if ahead or load.workers > 1 else sum(both)
    return each * load.workers / network.payload_rate


def check_floors(rows: Sequence[LinkRow]) -> None:
    """Raise NotShaped for a row that is faster than its link."""
    for row in rows:
        share = row.floor / row.seconds.median
        if share > MOST_SHARE:
            raise NotShaped(
                f"{row.peer}, {row.load.name}: expected at most the rate {row.rate}, got {share:.2f} times that"
            )


class LinkStage:
    """A network with all peers on it; a context manager. Host 0 has the server, each other host a worker."""

    def __init__(self, rate: str, workers: int, logs: Path, wanted: Sequence[str]) -> None:
        """`wanted`: parts of the names of peers; all of them when empty."""
        self._network = Network(workers + 1, rate)
        self._logs, self._wanted = logs / rate, wanted
        self._stack = ExitStack()

    def __enter__(self) -> "LinkStage":
        self._stack.enter_context(self._network)
        try:
            places = [host.place for host in self._network.hosts]
            self._bare = BarePeer(places, self._logs)
            self._stack.callback(self._bare.close)
            self._bare.start()
            self._peers = {
                peer.name: (peer, dtype)
                for peer, dtype in self._all(places)
                if not self._wanted or any(text in peer.label for text in self._wanted)
            }
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _all(self, places: Sequence[Place]) -> Iterator[tuple[Peer, str]]:
        yield self._bare, "float32"
        clusters = Clusters(self._logs, places)
        self._stack.callback(clusters.close)
        yield Theirs(TF, TF, clusters), "float32"
        yield Theirs(TF_BF16, TF_BF16, clusters, dtype="bfloat16"), "bfloat16"
        pool = WorkerPool(self._logs, places=places[1:])
        self._stack.callback(pool.close)
        for name, (transport, dtype) in {**OURS, **AHEAD}.items():
            connect = {"wire_dtype": dtype, "transport": transport, "prefetch": name in AHEAD}
            # Under `sync` the link carries one version for all workers; only `async` grants ahead.
            policy = "async" if name in AHEAD else "sync"
            where = "--bind", places[0].address, "--insecure"
            options = ["--policy", policy, "--transport", transport, *where]
            # Logs are called by it.
            file_name = name.replace("/", "-").replace(", ", "-")
            peer = Ours(file_name, name, pool, self._logs, connect, options, places[0])
            self._stack.callback(peer.close)
            yield peer, dtype

    def prove(self) -> Proof:
        """Raises NotShaped."""
        return self._bare.prove(self._network)

    def measure(self, load: Load, seconds: float, rounds: int, say: Callable[[str], object]) -> list[LinkRow]:
        """Let the peers take turns, in another order each round. Raises ChildError."""
        peers = [each for each in self._peers.values() if load.shapes or each[0] is not self._bare]
        rows = {
            peer.name: LinkRow(
                self._network.rate,
                load,
                peer.label,
                floor(load, dtype, self._network, ahead=peer.label in AHEAD),
            )
            for peer, dtype in peers
        }
        steps = {}
        for peer, _ in peers:
            say(f"{self._network.rate}, {load.name}: preparing {peer.label}")
            peer.prepare(load)
            once = peer.measure(1).seconds
            steps[peer.name] = max(LEAST_STEPS, round(seconds / once))
        server = self._network.hosts[0]
        for turn in range(rounds):
            say(f"{self._network.rate}, {load.name}: round {turn + 1} of {rounds}")
            for peer, _ in rotated(peers, turn):
                before = server.counters()
                rows[peer.name].bursts.append(peer.measure(steps[peer.name]))
                rows[peer.name].moved.append(server.counters() - before)
        for peer, _ in peers:
            peer.release()
        if bits_per_second(self._network.rate) <= FAST:
            check_floors(list(rows.values()))
        return list(rows.values())
