"""A server at another address: how it announces itself, and when server 0 believes it."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from psserver.service.errors import denied, invalid, precondition
from psserver.service.job.job import ServedJob
from psserver.service.runtime import Runtime
from pswire.addresses import Address, AddressError, parse_address
from pswire.bounds import BoundError, check
from pswire.generations import follows
from pswire.logs.events import event
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.proof import COORDINATOR, Caller, ProofError
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.failures import may_pass, reason
from pswire.transport.proven import check_server
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-server")


@dataclass(frozen=True, slots=True)
class Located:
    """A server's statement of where it is. `job`: empty if it only asks."""

    server: int
    servers: int
    address: str
    job: str


class Moves:
    """Server 0's answers to servers at other addresses, in one generation of the job.

    Such a server must have proven that it has the job's secret and name this generation, and nobody may be at the
    address that server 0 has. Then the job goes back to its newest checkpoint with the new address, as after any loss;
    workers learn it when they join the new generation. `own`: server 0's address; `recovers`: the job survives the
    loss of a server.
    """

    def __init__(
        self,
        job: ServedJob,
        own: Address,
        proven: bool,
        recovers: bool,
        move: Callable[[int, Address], None],
    ) -> None:
        """`proven`: the job has a secret, so that every server that asks has proven it. `move` begins the next
        generation with that server at that address."""
        self._job, self._own, self._proven, self._recovers, self._move = job, own, proven, recovers, move

    def locate(self, claimed: Located, when_answered: Callable[[Callable[[], None]], None]) -> Address:
        """Return where this server looks for the other, which may change that. Raises Refused.

        `when_answered` runs a function once the answer has been sent, because the end of this generation cuts all
        calls.
        """
        terms = self._job.terms
        if claimed.servers != terms.servers or not 1 <= claimed.server < terms.servers:
            raise precondition(
                f"expected server 1 to {terms.servers - 1} of {terms.servers}, got server {claimed.server} of "
                f"{claimed.servers}: give every server as many --ps-hosts"
            )
        try:
            address = parse_address(claimed.address)
        except AddressError as error:
            raise invalid(f"address: {error}") from error
        follower = self._job.routes.followers[claimed.server - 1]
        if address == follower.address or claimed.job != terms.job:
            return follower.address
        self._check(claimed, address)
        if not follower.missing:
            return follower.address

        def begin() -> None:
            if self._job.stopped() is None:
                self._move(claimed.server, address)

        when_answered(begin)
        return address

    def _check(self, claimed: Located, address: Address) -> None:
        if not self._proven:
            raise denied(
                f"server {claimed.server} is not known at {address}, and this job has no secret by which it could "
                "prove that it is there; give all servers of the job the same PS_JOB_SECRET",
            )
        if not self._recovers or self._job.stopped() is not None:
            raise precondition(
                f"server {claimed.server} is not known at {address}, and this job does not wait for a server that is "
                "lost: it takes no checkpoints, or --recover-timeout is 0, or it has ended"
            )
        others = {self._own, *(f.address for f in self._job.routes.followers)}
        if not address.port or address in others:
            raise invalid(f"address: expected one of server {claimed.server} alone, got {address}")


# Seconds between attempts. A server at its expected address is found within the first pause.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 2.0
LOCATE_TIMEOUT = 5.0


class Announcing:
    """Tells server 0 this server's address. `run` it in a task, and cancel that at the end.

    Server 0 may be away, come back, or be replaced meanwhile.
    """

    def __init__(
        self,
        coordinator: Address,
        own: Address,
        server: int,
        servers: int,
        worker_timeout: float,
        runtime: Runtime,
        credentials: Credentials = NO_TLS,
    ) -> None:
        self._credentials, self._runtime = credentials, runtime
        self._coordinator, self._own = coordinator, own
        self._server, self._servers = server, servers
        self._worker_timeout = worker_timeout
        # The last warning, which is not repeated.
        self._last_warning = ""

    async def run(self, followed: Callable[[], bool], job: str = "") -> None:
        """Announce until this server is followed. `job`: the generation that it follows, if any: the coordinator of
        that one knows where it is."""
        if not self._coordinator.port:
            # Server 0 has no port before it runs, and will connect by itself.
            return
        pause, options = FIRST_PAUSE, CHANNEL_OPTIONS(self._worker_timeout)
        async with self._runtime.dial(self._coordinator, options, self._credentials) as channel:
            while True:
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                if followed():
                    return
                await self._announce(channel, job)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _announce(self, channel: grpc.aio.Channel, job: str) -> None:
        try:
            known = await self._locate(channel, "")
            if job and not follows(known.job, job):
                return
            if known.address != str(self._own) and self._credentials.job_secret:
                known = await self._locate(channel, known.job)
        except (grpc.RpcError, BoundError, ProofError) as error:
            if not isinstance(error, grpc.RpcError) or not may_pass(error):
                self._say(reason(error) if isinstance(error, grpc.RpcError) else str(error))
            return
        if known.address != str(self._own):
            why = (
                "it follows that one, or will when it is gone for good"
                if self._credentials.job_secret
                else "to be found elsewhere it needs the same PS_JOB_SECRET as server 0"
            )
            self._say(f"it looks for server {self._server} at {known.address}: {why}")

    async def _locate(self, channel: grpc.aio.Channel, job: str) -> pb.LocateReply:
        request = pb.LocateRequest(
            task_index=self._server, servers=self._servers, address=str(self._own), job=job
        )
        caller = Caller(self._credentials.job_secret, "/pswire.v1.Coordinator/Locate", COORDINATOR)
        call: Any = channel.stream_stream(
            caller.method,
            request_serializer=caller.sealing(pb.LocateRequest.SerializeToString),
            response_deserializer=pb.LocateReply.FromString,
        )(timeout=LOCATE_TIMEOUT, metadata=caller.metadata)
        try:
            await check_server(caller, call)
            await call.write(request)
            await call.done_writing()
            reply: pb.LocateReply = await call.read()
        finally:
            call.cancel()
        check(reply)
        return reply

    def _say(self, sentence: str) -> None:
        if sentence != self._last_warning:
            self._last_warning = sentence
            fields = event("not_where_expected", server=self._server, address=str(self._own))
            log.warning("server 0 does not take this server at %s: %s", self._own, sentence, extra=fields)
