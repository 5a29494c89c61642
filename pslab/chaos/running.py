"""A local run whose processes are killed, stopped and cut off.

Workers connect to servers through relays, whose connections can be cut; with replicas they connect to whichever server
leads, and no relay is between.
"""

import contextlib
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

from pslab.chaos.campaign import Campaign, Disturbance, Outcome, Progress
from pslab.chaos.copies import CopiesCampaign
from pslab.display.progress import Display
from pslab.launch.engines.launcher import Task
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.exits import RunResult
from pslab.launch.run import RealRun
from pslab.launch.security import Protection
from pslab.launch.status_client import StatusClient, StatusError
from pslab.launch.tasks import Daemons
from pswire.config.experiment import Experiment

PIECE = 256 * 1024


class Relay:
    """A TCP relay from `address` on this machine to `target`, "host:port". Close it when done."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all open connections; new ones are accepted as before."""
        with self._guard:
            cut, self._open = self._open, set()
        for end in cut:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._guard:
                self._open |= {near, far}
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(PIECE):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            with self._guard:
                self._open -= {source, sink}
            for end in (source, sink):
                end.close()


LOOK_EVERY = 0.02
# Seconds that an answer may take. With replicas as long as a server may be silent before another one leads.
ANSWER, COPYS_ANSWER = 0.5, 1.0


class DisturbedRun(RealRun):
    """A `RealRun` on this machine that is disturbed while it goes on. Workers reach servers through relays.

    A thread polls the coordinator and disturbs processes; the run itself only restarts those that have died. It stops
    at `until`, on the monotonic clock, or after `limit` disturbances.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        display: Display,
        daemons: Daemons,
        campaign: Campaign | CopiesCampaign,
        until: float,
        limit: int,
        security: Protection | None = None,
    ) -> None:
        super().__init__(experiment, folder, display, LocalLauncher(), daemons, security=security)
        self.campaign, self._until, self._limit = campaign, until, limit
        self._copies = experiment.cluster.replicas > 1
        self._relays: dict[tuple[str, str], Relay] = {}
        self._over = threading.Event()
        self._resumes: list[threading.Timer] = []

    def run(self) -> RunResult:
        """Run as `RealRun.run` does, with disturbances."""
        disturber = threading.Thread(target=self._disturb, daemon=True)
        disturber.start()
        try:
            return super().run()
        finally:
            self._over.set()
            disturber.join()
            for timer in self._resumes:
                timer.cancel()
            for relay in self._relays.values():
                relay.close()

    def _start_task(self, task: Task) -> None:
        if task.name in self._workers and not self._copies:
            hosts, relayed = self._tasks.hosts(self._addresses), self._relayed_hosts(task.name)
            command = [relayed if word == hosts else word for word in task.command]
            variables = {key: relayed if value == hosts else value for key, value in task.environment.items()}
            task = replace(task, command=command, environment=variables)
        super()._start_task(task)

    def _relayed_hosts(self, worker: str) -> str:
        """Return the addresses of this worker's relays, which stay valid when a server restarts."""
        for server in self._servers:
            if (worker, server) not in self._relays:
                self._relays[worker, server] = Relay(self._addresses[server])
        return ",".join(self._relays[worker, server].address for server in self._servers)

    # In the disturbing thread

    def _disturb(self) -> None:
        while not self._ready:
            if self._over.wait(LOOK_EVERY):
                return
        asked = self._servers if self._copies else self._servers[:1]
        hosts = ",".join(self._addresses[name] for name in asked)
        client = StatusClient(hosts, COPYS_ANSWER if self._copies else ANSWER, self._credentials)
        reported: list[Outcome] = []
        try:
            while not self._over.wait(LOOK_EVERY):
                seen, now = _ask(client), time.monotonic()
                more = now < self._until and len(self.campaign.outcomes) < self._limit
                due = self.campaign.see(now, seen, more)
                if due is not None and self._do(due):
                    self.campaign.done(time.monotonic(), due)
                self._tell(reported)
        finally:
            client.close()

    @property
    def _ready(self) -> bool:
        if self._copies:
            return self._poller is not None
        relays = len(self._workers) * len(self._servers)
        return self._servers[0] in self._addresses and len(self._relays) == relays

    def _tell(self, reported: list[Outcome]) -> None:
        """Say of each disturbance how long the next version took; `reported`: those already named."""
        for each in self.campaign.outcomes:
            if each.seconds is not None and each not in reported:
                reported.append(each)
                struck = each.disturbance
                text = f"chaos: {struck.name} ({struck.role}, {struck.kind}): next version after {each.seconds:.2f} s"
                self._display.warning(text, "")

    def _do(self, due: Disturbance) -> bool:
        """Carry out a disturbance; return False if the process is not running."""
        process = self._processes.get(due.name)
        if process is None or not process.running:
            return False
        self._display.warning(f"chaos: {due.kind} {due.name} ({due.role})", "")
        if due.kind == "cut":
            for ends, relay in self._relays.items():
                if due.name in ends:
                    relay.cut()
            return True
        if due.kind == "kill":
            process.send(signal.SIGKILL)
            return True
        process.send(signal.SIGSTOP)
        seconds = due.pause * self._experiment.cluster.worker_timeout
        timer = threading.Timer(seconds, process.send, (signal.SIGCONT,))
        self._resumes.append(timer)
        timer.start()
        return True


def _ask(client: StatusClient) -> Progress | None:
    try:
        reply = client.ask()
    except StatusError:
        return None
    states = tuple(server.state for server in reply.servers)
    return Progress(reply.job, reply.version, reply.phase, states)
