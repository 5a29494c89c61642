"""What tests ask of a running server beyond its Status, and how they disturb it.

Everything goes by the server's public parts (`host`, `job`, `sockets`). The
thread that owns them is not asked: a test reads what has come to rest, or waits
until it has (`wait_until`). What disturbs them is done by that thread.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from psserver.coordinator import Coordinator
from psserver.coordinator.outputs import Record
from psserver.replication.messages import Stand
from psserver.service.errors import RequestRefused
from psserver.service.job.job import ServedJob
from psserver.service.life import results
from psserver.service.net import registration
from psserver.service.net.registration import Call, MethodHandlers
from psserver.service.server import Server
from psserver.service.store.host import ShardHost
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.v1 import shard_pb2
from tests.asking import ask
from tests.patience import PATIENCE

# Of the event loop: more than a server's end takes.
TURNS = 10_000


class Probe:
    def __init__(self, server: Server) -> None:
        self.server = server

    def leave_out(self) -> None:
        """A server with a copy hears that its copy counts no more."""
        role = self.server._replicating
        assert role is not None
        self.server.runtime.tell(role._copy.reset)

    def stand(self) -> None:
        """A server with a copy asks for the lead, as if nobody had it, unless it asks already."""
        role = self.server._replicating
        assert role is not None
        shell = role._shell

        def stand() -> None:
            if shell.replica.standing is None and not shell.replica.leads:
                shell.give(Stand(()))

        self.server.runtime.tell(stand)

    @property
    def leads(self) -> bool:
        """Whether it leads the job."""
        role = self.server._replicating
        return role is not None and role.job is not None

    # The shard

    @property
    def host(self) -> ShardHost:
        return self.server.host

    @property
    def shard(self) -> Shard:
        """Once a worker has joined."""
        assert self.host.state.shard is not None, "no model yet"
        return self.host.state.shard

    @property
    def version(self) -> int:
        """The newest on this server."""
        return self.shard.version

    @property
    def buffers(self) -> int:
        """That versions lie in. They are made when needed and never given back but for those of evicted readers:
        without one, the most that there were."""
        return self.shard.arena.buffers

    def hang(self) -> threading.Event:
        """It takes no order of its coordinator any more until the event is set; its connections stand."""
        goes_on, served = threading.Event(), self.server.following
        assert served is not None, "expected another server than 0"
        rpc = served.rpc
        take = rpc._take

        async def wait(request: shard_pb2.FollowRequest, call: Call) -> None:
            await asyncio.to_thread(goes_on.wait)
            await take(request, call)

        rpc._take = wait  # type: ignore[method-assign]
        return goes_on

    def ends_alone_after(self, seconds: float) -> None:
        """Told to end by a signal, this server (not 0) waits for so long for its coordinator's word."""
        served = self.server.following
        assert served is not None, "expected another server than 0"
        settings = served._settings
        served._settings = replace(settings, terms=replace(settings.terms, worker_timeout=seconds))

    def patient(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        """From now on a call waits for so long for an entry of the log, and a reader for its version."""
        monkeypatch.setattr(self.host.claims, "patience", seconds)
        monkeypatch.setattr(self.host.reading, "_patience", seconds)

    # The job, on server 0

    @property
    def job(self) -> ServedJob:
        assert self.server.job is not None, "expected server 0"
        return self.server.job

    @property
    def coordinator(self) -> Coordinator:
        return self.job.coordinator

    def applied(self, worker: str) -> int:
        """Contributions of this worker that were applied."""
        return self.coordinator.state.roster.tallies[worker].applied

    def staleness(self, worker: str) -> dict[int, int]:
        """How many of this worker's contributions were applied with each staleness."""
        return dict(self.coordinator.state.roster.tallies[worker].staleness)

    @property
    def tickets(self) -> int:
        """Allocated so far, the initialisation's among them."""
        return self.coordinator.state.tickets.next_number - 1

    # Connections

    def stop_listening(self) -> None:
        """As a kill would: all calls break, and the address is free."""
        served = self.server.listeners.grpc
        assert served is not None
        asyncio.run_coroutine_threadsafe(served.stop(0), self.server.runtime.loop).result(PATIENCE)

    @property
    def sockets(self) -> int:
        """Connections of members, beside gRPC."""
        return len(self.server.sockets.connections)

    # Disturbances

    def end_sessions(self) -> None:
        """End every session stream; the workers are alive and will be back."""
        ask(self.server.runtime, lambda: [outbox.end() for outbox in self.job.routes.outboxes.all()])

    def cut_sockets(self) -> None:
        ask(self.server.runtime, lambda: [each.cut() for each in self.server.sockets.connections])

    def refuse_memory(self, reason: str) -> None:
        """From now on no worker is given shared memory."""
        self.host.sharing.refusal = reason

    def after_push(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
        """`call()` when a payload is complete, before its receipt is sent."""
        finish = self.host.pushes.finish

        def finish_and_call(shard: Shard, slot: Slot) -> None:
            finish(shard, slot)
            call()

        monkeypatch.setattr(self.host.pushes, "finish", finish_and_call)

    def on_record(self, monkeypatch: pytest.MonkeyPatch, call: Callable[[Record], object]) -> None:
        """`call(record)` for each entry of the decision log from now on, before it is written."""
        run_log = self.job.routes.run_log
        append = run_log.append

        def call_and_append(record: Record) -> None:
            call(record)
            append(record)

        monkeypatch.setattr(run_log, "append", call_and_append)


def late_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule: the status of a call, of whatever kind, comes long after what the call has caused. A server that ends
    without waiting for it cuts it."""
    refuse, serve = registration.abort, MethodHandlers._served

    async def refused(*arguments: Any) -> None:
        await _turns()
        await refuse(*arguments)

    async def served(*arguments: Any) -> RequestRefused | None:
        refusal: RequestRefused | None = await serve(*arguments)
        await _turns()
        return refusal

    monkeypatch.setattr(registration, "abort", refused)
    monkeypatch.setattr(MethodHandlers, "_served", served)


def hold_final_weights(monkeypatch: pytest.MonkeyPatch, goes_on: threading.Event) -> None:
    """A schedule: that a server's final weights are waited for is known, and they are asked for when the event is
    set."""
    read = results._read

    async def held(*arguments: Any) -> Any:
        await asyncio.to_thread(goes_on.wait, PATIENCE)
        return await read(*arguments)

    monkeypatch.setattr(results, "_read", held)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
