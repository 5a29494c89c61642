"""Where the time of one step goes: every part of it alone, beside the whole.

One worker, one server, plain SGD, async, communication only. Parts that touch
the payload run on arrays of its size, compiled, with as many threads as
ps-server takes; what carries the messages is measured with a bare echo in
another process. What the whole step takes longer than its parts is Python in
between (sessions, locks, tickets, messages), threads that wake each other, and
caches that another process has emptied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from rich.table import Table

from benchmarks.kinds import GRPC, SHM, SOCKET
from benchmarks.loads import Load, even
from benchmarks.measures.samples import Samples, collected, each
from benchmarks.peers.child import Child
from benchmarks.report.tables import number
from benchmarks.stage import Stage
from psserver.coordinator import Coordinator, JobTerms
from psserver.fast import FastBackend
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy
from psserver.settings import usual_threads
from psserver.shard import arithmetic
from pswire import protocol
from pswire.transport import frames
from pswire.transport import socket_handshake as handshake
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.framed_socket import Parts

LOADS = (Load("0.26 MB", even(0.26, 4)), Load("67 MB", even(67, 4)))
ROUNDS = 5
SECONDS = 0.15  # on each part, per round
KEEPALIVE = 10.0

NAMES = {SHM: "shared memory", SOCKET: "socket", GRPC: "gRPC"}
WHOLE, REST = "whole step", "in between"
# Part -> by which transport it happens.
PARTS: Mapping[str, tuple[str, ...]] = {
    "worker: gradient into its slot (copy)": (SHM,),
    "there and back on a Unix socket": (SHM,),
    "there and back by a bare gRPC stream, with both payloads": (GRPC,),
    "there and back by a bare TCP socket, with both payloads": (SOCKET,),
    "worker: chunks into its array (copy)": (GRPC, SOCKET),
    "server: payload into staging, checked (one pass)": (SHM, GRPC, SOCKET),
    "server: decide (coordinator, policy, log entries)": (SHM, GRPC, SOCKET),
    "server: update (SGD, one pass)": (SHM, GRPC, SOCKET),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """Milliseconds of one load's parts, and of whole steps by transport."""

    load: str
    parts: dict[str, Samples]
    whole: dict[str, Samples]

    def between(self, transport: str) -> float:
        """Of the whole step, what no part explains; negative where parts overlap."""
        known = sum(self.parts[name].median for name, where in PARTS.items() if transport in where)
        return self.whole[transport].median - known

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(stage: Stage, logs: Path) -> list[Budget]:
    """Raises ChildError."""
    with _carrier(logs) as carry:
        return [_budget(load, stage, carry) for load in LOADS]


Carry = Mapping[str, Callable[[np.ndarray], object]]


def _budget(load: Load, stage: Stage, carry: Carry) -> Budget:
    row = stage.measure(load, stage.choose(GRPC, SOCKET, SHM))
    whole = {peer: collected([1e3 / burst.rate for burst in bursts]) for peer, bursts in row.bursts.items()}
    taken: dict[str, list[float]] = {name: [] for name in PARTS}
    with FastBackend(usual_threads()) as backend:
        parts = parts_of(load.nbytes // 4, backend, carry)
        for turn in range(ROUNDS):
            stage.say(f"{load.name}: parts, round {turn + 1} of {ROUNDS}")
            for name, action in parts.items():
                taken[name].append(1e3 * each(action, SECONDS))
    return Budget(load.name, {name: collected(values) for name, values in taken.items()}, whole)


def parts_of(size: int, backend: FastBackend, carry: Carry) -> dict[str, Callable[[], object]]:
    optimizer = build_optimizer({"name": "sgd", "learning_rate": 0.001})
    backend.prepare([optimizer.variant(), *((loop, loop.letters) for loop in arithmetic.LOOPS)])
    if not backend.wait_ready():
        raise RuntimeError(f"expected compiled loops, but {backend.reason}")
    now, out, gradient = (np.full(size, 1e-6, np.float32) for _ in range(3))
    versions = count()
    step = _deciding()
    return dict(
        zip(
            PARTS,
            (
                lambda: np.copyto(out, gradient),
                lambda: carry["unix"](gradient),
                lambda: carry["stream"](gradient),
                lambda: carry["socket"](gradient),
                lambda: _in_chunks(out, gradient),
                lambda: arithmetic.copy_squares(out, gradient, arithmetic.LARGEST, backend),
                step,
                lambda: optimizer.update(
                    now, gradient, out, {}, version=next(versions), lr_scale=1.0, backend=backend
                ),
            ),
            strict=True,
        )
    )


def _in_chunks(out: np.ndarray, payload: np.ndarray) -> None:
    step = frames.CHUNK_BYTES // 4
    for start in range(0, payload.size, step):
        out[start : start + step] = payload[start : start + step]


def _deciding() -> Callable[[], object]:
    """One commit, with the next request, of the only worker under async."""
    coordinator = Coordinator(JobTerms("bench", {"name": "sgd"}), build_policy("async", {}, 1), 0.0)
    coordinator.opening()
    coordinator.join("w0", "session", None, 0.0)
    coordinator.connect("w0", 0, "session", 0.0)
    coordinator.handle("w0", 0, protocol.Ready(), 0.0)
    (first,) = coordinator.tickets.live
    coordinator.handle("w0", 0, protocol.Commit(first, ready=True), 0.0)

    def step() -> None:
        (ticket,) = coordinator.tickets.live
        commit = protocol.Commit(ticket, samples=1, loss=0.1, ready=True)
        coordinator.handle("w0", 0, commit, 0.0, norm=1.0)

    return step


@contextmanager
def _carrier(logs: Path) -> Iterator[Carry]:
    """What carries a step's messages, with nothing behind it: an echo in another process."""
    echo = Child("carrier", ["-m", "benchmarks.programs.echo"], logs / "carrier.log")
    try:
        said = echo.receive()
        here, there = (bytes.fromhex(token) for token in said["tokens"])
        unix = handshake.connect_unix(said["unix"], here)
        tcp = handshake.connect_tcp("127.0.0.1", said["port"], there)
        outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        with grpc.insecure_channel(f"127.0.0.1:{said['grpc']}", CHANNEL_OPTIONS(KEEPALIVE)) as channel:
            call: Any = channel.stream_stream("/bench.Echo/Carry")
            replies = call(iter(outgoing.get, None))

            def on_unix(payload: np.ndarray) -> None:
                unix.send([b"\1" + bytes(199)])
                unix.receive()

            def on_stream(payload: np.ndarray) -> None:
                """All chunks out, then as many back."""
                pieces = list(_marked(payload))
                for parts in pieces:
                    outgoing.put(b"".join(parts))
                for _ in pieces:
                    next(replies)

            def on_socket(payload: np.ndarray) -> None:
                pieces = list(_marked(payload))
                for parts in pieces:
                    tcp.send(parts)
                for _ in pieces:
                    tcp.receive()

            yield {"unix": on_unix, "stream": on_stream, "socket": on_socket}
            outgoing.put(None)
        unix.close()
        tcp.close()
    finally:
        echo.close()


def _marked(payload: np.ndarray) -> Iterator[Parts]:
    """Its chunks, each behind a byte that says whether it is the last."""
    pieces = [data for _, data in frames.chunks(payload)]
    for place, data in enumerate(pieces, 1):
        yield bytes([place == len(pieces)]), data


def table(budgets: Sequence[Budget]) -> Table:
    """Milliseconds, a column per load and transport."""
    made = Table(
        title="budget of a step: ms, one worker, one server, communication only",
        title_justify="left",
        header_style="bold",
    )
    made.add_column("part")
    columns = [(b, t) for b in budgets for t in (SHM, SOCKET, GRPC) if t in b.whole]
    for budget, transport in columns:
        made.add_column(f"{budget.load}, {NAMES[transport]}", justify="right")
    for name, where in PARTS.items():
        cells = [number(b.parts[name].median) if t in where else "" for b, t in columns]
        made.add_row(name, *cells)
    made.add_section()
    made.add_row(REST, *(f"{b.between(t):.2f}" for b, t in columns))
    made.add_row(WHOLE, *(f"{number(b.whole[t].median)} ±{b.whole[t].spread:.0%}" for b, t in columns))
    return made
