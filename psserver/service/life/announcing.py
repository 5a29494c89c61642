"""A server that nobody gives orders to tells server 0 where it is: that may look for it on another address."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import grpc

from psserver import receipts
from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.logs.events import event
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.connecting import open_aio_channel, stub_of
from pswire.transport.failures import may_pass, reason
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-server")

# Seconds. A server that is where server 0 looks for it is found within the first pause.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 2.0
PATIENCE = 5.0


class Announcing:
    """`run` it in a task, and cancel that at the end. Server 0 may be away, come back, or be told by somebody else."""

    def __init__(
        self,
        coordinator: Address,
        own: Address,
        server: int,
        servers: int,
        job_secret: bytes,
        worker_timeout: float,
        credentials: Credentials = NO_TLS,
    ) -> None:
        self._credentials = credentials
        self._coordinator, self._own = coordinator, own
        self._server, self._servers = server, servers
        self._secret = job_secret
        self._worker_timeout = worker_timeout
        # Said last: the same again is not.
        self._said = ""

    async def run(self, followed: Callable[[], bool]) -> None:
        """Until this server is followed."""
        if not self._coordinator.port:
            # It has no address before it runs, and will come by itself.
            return
        pause, options = FIRST_PAUSE, CHANNEL_OPTIONS(self._worker_timeout)
        async with open_aio_channel(str(self._coordinator), options, self._credentials) as channel:
            stub = stub_of(channel)
            while True:
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                if followed():
                    return
                await self._announce(stub)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _announce(self, stub: Any) -> None:
        try:
            known = await self._locate(stub, "")
            if known.address != str(self._own) and self._secret:
                known = await self._locate(stub, known.job)
        except (grpc.RpcError, BoundError) as error:
            if not isinstance(error, grpc.RpcError) or not may_pass(error):
                self._say(reason(error) if isinstance(error, grpc.RpcError) else str(error))
            return
        if known.address != str(self._own):
            why = (
                "it follows that one, or will when it is gone for good"
                if self._secret
                else "to be found elsewhere it needs the same PS_JOB_SECRET as server 0"
            )
            self._say(f"it looks for server {self._server} at {known.address}: {why}")

    async def _locate(self, stub: Any, job: str) -> pb.LocateReply:
        own = str(self._own)
        request = pb.LocateRequest(
            task_index=self._server,
            servers=self._servers,
            address=own,
            job=job,
            proof=receipts.moving(self._secret, job, self._server, own) if job else b"",
        )
        reply: pb.LocateReply = await stub.Locate(
            request, timeout=PATIENCE, metadata=self._credentials.metadata
        )
        check(reply)
        return reply

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            told = event("not_where_expected", server=self._server, address=str(self._own))
            log.warning("server 0 does not take this server at %s: %s", self._own, sentence, extra=told)
