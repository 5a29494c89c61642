"""Real processes stand still, as a suspended laptop, a debugger or a virtual machine that moves makes them.

Who is given up, which versions are lost, and when does the next one come?

    python -m tests.chaos.pauses                       every row; about as long as the pauses together, by eight
    python -m tests.chaos.pauses --cluster "2 servers" --who "server 0" --seconds 15,60

A job of two workers under `sync` trains on servers of this machine. SIGSTOP stops processes, SIGCONT lets them go on.
Prints a row of a table for each pause, and ends with 1 if a process was given up that had been away for no longer than
the documented limits, or a version was lost.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pswire.patience import SERVER_AWAY, SERVER_TIMEOUT

SECONDS = (5, 15, 60, 180)
WORKER_TIMEOUT = 10.0
# Seconds for the first version, and for the next one behind a pause.
BEGIN, NEXT = 180.0, 120.0
LOOK = 0.05


@dataclass(frozen=True)
class Servers:
    """The servers of a job."""

    name: str
    count: int
    copies: bool = False

    @property
    def options(self) -> list[str]:
        return ["--replicas", "2"] if self.copies else []


CLUSTERS = (
    Servers("1 server", 1),
    Servers("2 servers", 2),
    Servers("3 servers", 3),
    Servers("2 servers, 2 copies", 2, copies=True),
    Servers("3 servers, 2 copies", 3, copies=True),
)
WHO = ("server 0", "server 1", "worker", "all")


@dataclass
class Row:
    """What followed from a pause. `away`: whose limit was shorter than the pause, by the documents."""

    cluster: str
    who: str
    seconds: int
    given_up: list[str] = field(default_factory=list)
    lost: int = 0
    next: float | None = None

    @property
    def holds(self) -> bool:
        """Whether nobody was given up who was not away for longer than the documented limit."""
        if "copies" in self.cluster and self.given_up == ["server 0 (exit 5)"]:
            # The other copy leads after a second, and whoever led before ends.
            return self.lost == 0 and self.next is not None
        limits = {"worker": WORKER_TIMEOUT, "server 0": SERVER_TIMEOUT, "server 1": SERVER_AWAY}
        if self.who == "all":
            return not self.given_up and not self.lost and self.next is not None
        may = self.seconds > limits[self.who]
        return self.lost == 0 and (may or (not self.given_up and self.next is not None))

    def __str__(self) -> str:
        then = "-" if self.next is None else f"{self.next:.1f}"
        names = ", ".join(self.given_up) or "nobody"
        return f"| {self.cluster} | {self.who} | {self.seconds} | {names} | {self.lost} | {then} |"


class Job:
    """A job's processes. Its folder holds their logs."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers, self.folder = servers, folder
        ports = free_ports(servers.count)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "PS_JOB_SECRET": "of the pauses"}
        if servers.copies:
            self.environment["PS_REPLICAS"] = "2"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for index in range(servers.count):
            given = ["--ps-hosts", hosts, "--task-index", str(index), "--out", str(folder / "run")]
            named = ["--workers", "2", "--worker-timeout", str(WORKER_TIMEOUT), "--policy", "sync"]
            self._start(f"server {index}", "-m", "psserver", *given, *named, *servers.options)
        for index in range(2):
            work = [
                "--ps-hosts",
                hosts,
                "--batches",
                "1000000",
                "--seconds",
                "0.2",
                "--task-index",
                str(index),
            ]
            self._start(f"worker w{index}", "-m", "tests.cluster.numpy_worker", *work)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.txt").open("wb") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command], env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def ended(self) -> list[str]:
        """Processes that are over, with their exit codes."""
        return [f"{name} (exit {p.returncode})" for name, p in self.processes.items() if p.poll() is not None]

    @property
    def over(self) -> bool:
        """Whether nothing can be stopped any more: a process has ended that is to be stopped, or they all will."""
        return any("exit 3" in each for each in self.ended)

    def entries(self) -> list[dict[str, object]]:
        path = self.folder / "run" / "decisions.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                # The last line is being written.
                break
        return found

    def version(self) -> int:
        return max(
            (int(str(e.get("version", 0))) for e in self.entries() if e.get("kind") == "apply"), default=0
        )

    def wait_beyond(self, version: int, seconds: float) -> float | None:
        """Seconds until a later version, None if there is none."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.version() > version:
                return time.monotonic() - began
            if len(self.ended) == len(self.processes):
                return None
            threading.Event().wait(LOOK)
        return None

    def whom(self, who: str) -> list[subprocess.Popen[bytes]]:
        if who == "all":
            return list(self.processes.values())
        if who == "server 0" and self.processes[who].poll() is not None:
            # The other copy leads.
            who = "server 1"
        return [self.processes["worker w1" if who == "worker" else who]]

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@contextmanager
def job(servers: Servers) -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="pauses-", ignore_cleanup_errors=True) as folder:
        made = Job(servers, Path(folder))
        try:
            yield made
        finally:
            made.close()


def paused(made: Job, who: str, seconds: int) -> Row:
    """Stop and continue; return what followed."""
    row = Row(made.servers.name, who, seconds)
    told, over, processes = len(made.entries()), made.ended, made.whom(who)
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    threading.Event().wait(seconds)
    before = made.version()
    for process in processes:
        process.send_signal(signal.SIGCONT)
    row.next = made.wait_beyond(before, NEXT)
    # Whoever was given up at once would be given up by now.
    threading.Event().wait(2 * WORKER_TIMEOUT)
    if row.next is not None and made.wait_beyond(made.version(), NEXT) is None:
        # That version was the last one: nobody leads any more.
        row.next = None
    entries = made.entries()[told:]
    row.given_up = [f"worker {e.get('worker')}" for e in entries if e.get("kind") == "leave"]
    row.given_up += [each for each in made.ended if each not in over]
    row.lost = max(0, before - made.version())
    return row


def rows_of(servers: Servers, who: str, seconds: Sequence[int]) -> list[Row]:
    """One job for all pauses of a kind, or another one behind a pause that ended it."""
    left, found = list(seconds), list[Row]()
    while left:
        with job(servers) as made:
            if made.wait_beyond(3, BEGIN) is None:
                raise RuntimeError(f"{servers.name}: no version; {made.ended}")
            while left and not made.over:
                found.append(paused(made, who, left.pop(0)))
                print(found[-1], flush=True)
                if not found[-1].holds or made.over:
                    for path in sorted(made.folder.glob("*.txt")):
                        print(f"--- {path.name}\n{path.read_text()[-1500:]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", action="append", choices=[each.name for each in CLUSTERS])
    parser.add_argument("--who", action="append", choices=WHO)
    parser.add_argument("--seconds", default=",".join(map(str, SECONDS)))
    parser.add_argument("--at-once", type=int, default=8, help="jobs at a time")
    given = parser.parse_args()
    seconds = [int(each) for each in given.seconds.split(",")]
    chosen = [
        (servers, who)
        for servers in CLUSTERS
        if given.cluster is None or servers.name in given.cluster
        for who in given.who or WHO
        if not (who == "server 1" and servers.count == 1)
    ]
    with ThreadPoolExecutor(given.at_once) as pool:
        rows = [
            row
            for found in pool.map(lambda each: rows_of(each[0], each[1], seconds), chosen)
            for row in found
        ]
    print("\n| servers | who | stood still, s | given up | versions lost | next version after, s |")
    print("|---|---|---|---|---|---|")
    print(*rows, sep="\n")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
