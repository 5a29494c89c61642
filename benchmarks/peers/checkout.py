"""Another checkout of this repository as a peer: it runs its own benchmark programs with its own packages.

This file is also the program: started in the other checkout, it imports that checkout's `benchmarks`, whatever its
servers' options are called, and answers prepare {peer, transport, dtype, load}, measure {steps} and release {}. It uses
only what `benchmarks.peers.ours`, `benchmarks.loads` and `benchmarks.programs.json_commands` have had since commit
0a0782c9.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.loads import Load
from benchmarks.peers import Burst
from benchmarks.peers.child import Child


class Checkout:
    """Our peers of another checkout, one at a time, in a process of that checkout."""

    def __init__(self, root: Path, logs: Path) -> None:
        own = root / ".venv" / "bin" / "python"
        self._child = Child(
            "other checkout",
            ["-P", str(Path(__file__).resolve()), str(logs.resolve())],
            logs / "checkout.log",
            root=root,
            python=str(own) if own.exists() else sys.executable,
        )

    def peer(self, name: str, label: str, transport: str, dtype: str, tls: bool) -> "CheckoutPeer":
        return CheckoutPeer(self._child, name, label, {"transport": transport, "dtype": dtype, "tls": tls})

    def close(self) -> None:
        self._child.close()


class CheckoutPeer:
    """One of them."""

    def __init__(self, child: Child, name: str, label: str, kind: dict[str, Any]) -> None:
        self.name, self.label = name, label
        self._child, self._kind = child, kind

    def prepare(self, load: Load) -> None:
        self._child.ask("prepare", peer=self.name, load=asdict(load), **self._kind)

    def measure(self, steps: int) -> Burst:
        return Burst(**self._child.ask("measure", peer=self.name, steps=steps))

    def release(self) -> None:
        self._child.ask("release", peer=self.name)


def _serve(logs: Path) -> None:
    """Run in the other checkout."""
    from benchmarks.peers import tls as certificates
    from benchmarks.peers.ours import Ours, WorkerPool
    from benchmarks.programs.json_commands import serve

    pool, prepared = WorkerPool(logs), dict[str, Any]()

    def prepare(peer: str, transport: str, dtype: str, tls: bool, load: dict[str, Any]) -> None:
        connect, options = {"wire_dtype": dtype, "transport": transport}, ["--transport", transport]
        if tls:
            connect |= certificates.keywords(worker)
            options += certificates.options(server)
        shapes = tuple(tuple(shape) for shape in load.pop("shapes"))
        prepared[peer] = Ours(peer, peer, pool, logs, connect, options)
        prepared[peer].prepare(Load(shapes=shapes, **load))

    def measure(peer: str, steps: int) -> dict[str, Any]:
        return asdict(prepared[peer].measure(steps))

    def release(peer: str) -> None:
        prepared.pop(peer).release()

    commands: dict[str, Callable[..., Any]] = {"prepare": prepare, "measure": measure, "release": release}
    with TemporaryDirectory(prefix="bench-") as folder:
        server, worker = certificates.make(Path(folder))
        serve(commands)
    for each in prepared.values():
        each.close()
    pool.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
