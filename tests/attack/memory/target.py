"""A real ps-server with a memory limit, and an honest worker on it before and after."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pswire.model.plan import VariableSpec
from pswire.v1 import shard_pb2
from tests.service.peer import Peer
from tests.service.serving import Cluster

LIMIT = "1GiB"
MIB = 2**20


@dataclass(frozen=True)
class Remote:
    address: str


@dataclass
class Target:
    """`cluster`: the one server; `variables`: of its model."""

    process: "subprocess.Popen[str]"
    cluster: Cluster
    address: str
    variables: Sequence[VariableSpec]
    honest: Peer | None = None

    @property
    def nbytes(self) -> int:
        """Of the model."""
        return 4 * sum(spec.size for spec in self.variables)

    @property
    def peak(self) -> int:
        """The most resident memory so far, in bytes."""
        return self._kilobytes("VmHWM") * 1024

    @property
    def resident(self) -> int:
        return self._kilobytes("VmRSS") * 1024

    def _kilobytes(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def shared(self) -> int:
        """Bytes of memory files that the server has open, whether they are mapped or not."""
        total, seen = 0, set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                facts = entry.stat()
                if "memfd:" in str(entry.readlink()) and facts.st_ino not in seen:
                    seen.add(facts.st_ino)
                    total += 512 * facts.st_blocks
            except OSError:
                # Closed since it was listed.
                continue
        return total

    def member(self, name: str) -> Peer:
        return Peer(self.cluster, name, self.variables)

    def step(self, peer: Peer | None = None) -> None:
        """Of this member; else of the honest one, which joins with its first."""
        if peer is None:
            peer = self.honest = self.honest or self.member("honest")
        peer.step(0.0)

    def claim(self, peer: Peer) -> bytes:
        """The first frame of a connection beside gRPC."""
        reply = peer.reply
        return shard_pb2.Attach(
            job=peer.job,
            worker=peer.worker,
            incarnation=reply.incarnation,
            membership_token=reply.membership_token,
            plan=peer.plan.fingerprint,
        ).SerializeToString()

    def offer(self, peer: Peer) -> shard_pb2.Attached:
        """Where server 0 takes such connections."""
        request = shard_pb2.ExchangeRequest(attach=shard_pb2.Attach.FromString(self.claim(peer)))
        asked = self.cluster.raw(0, "/pswire.v1.Shard/Exchange")(iter([request.SerializeToString()]))
        return shard_pb2.ExchangeReply.FromString(next(asked)).attached


def wide(mebibytes: float) -> tuple[VariableSpec, ...]:
    """A model of that size."""
    return (VariableSpec("w", (int(mebibytes * MIB) // 4,)),)


@contextmanager
def target(mebibytes: float, *options: str, trained: bool = True) -> Iterator[Target]:
    """A server on which one worker has made a step with a model of that size; it comes later where not `trained`."""
    command = [
        sys.executable,
        "-m",
        "psserver",
        "--ps-hosts",
        "127.0.0.1:0",
        "--json",
        "--memory-limit",
        LIMIT,
    ]
    command += ["--policy", "async", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            cluster = Cluster([Remote(address)])  # type: ignore[list-item]
            try:
                found = Target(process, cluster, address, wide(mebibytes))
                if trained:
                    found.step()
                yield found
            finally:
                cluster.close()
        finally:
            process.kill()
