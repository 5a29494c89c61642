"""The servers of a job as one session sees them: a connection to each, asked all at once."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import grpc

from pswire.addresses import Address, AddressError, parse_address
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.patience import UNKNOWN_TIMEOUT, ping_interval
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.channels import CHANNEL_OPTIONS, Options
from pswire.transport.connecting import open_channel
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from psworker.data.membership import MemberId
from psworker.data.shard_client import ShardClient
from psworker.errors import SessionError, Unreachable

log = logging.getLogger("ps-worker")

R = TypeVar("R")


class ShardGroup:
    """`shards`: the data planes, in task order, once this worker has joined. `closing`: the session ends, and no call
    waits any more.

    `pointless`: no more payload is of use, because it ends or the job has failed.
    """

    def __init__(
        self,
        hosts: tuple[Address, ...],
        plan: Plan,
        wire: Wire,
        patience: float,
        transport: str,
        credentials: Credentials = NO_TLS,
    ) -> None:
        self._credentials = credentials
        self.closing, self.pointless = threading.Event(), threading.Event()
        # Why a server does not answer, by what else is known.
        self.explain: Callable[[Unreachable], SessionError] = lambda error: error
        # Why a ticket is void, if it is: nothing is asked in the name of a membership that did not get it.
        self.void: Callable[[int], str | None] = lambda ticket: None
        # Control messages never queue behind payloads: each server's data has its own connection.
        self.control = _channel(hosts[0], CHANNEL_OPTIONS(UNKNOWN_TIMEOUT), credentials)
        self._channels: list[grpc.Channel] = []
        self.shards: list[ShardClient] = []

        # As the coordinator said last.
        self._hosts = hosts

        # Told how payloads travel to each server, whenever that has changed.
        self.on_transport: Callable[[Sequence[str]], object] = lambda kinds: None

        def connect(hosts: tuple[Address, ...], options: Options, silence: float) -> None:
            for server, address in enumerate(hosts):
                channel = _channel(address, options, credentials)
                self._channels.append(channel)
                self.shards.append(
                    ShardClient(
                        server,
                        address,
                        channel,
                        plan,
                        wire,
                        patience,
                        self.pointless,
                        transport,
                        lambda ticket: self.void(ticket),
                        credentials,
                        silence,
                    )
                )
            threading.Thread(target=self._watch, args=(silence,), name="transports", daemon=True).start()

        self._connect = connect
        # Twice as many: a version may be on its way in while a gradient is on its way out.
        self._pool = (
            ThreadPoolExecutor(2 * len(hosts), thread_name_prefix="shard") if len(hosts) > 1 else None
        )

    def each(self, call: Callable[[ShardClient], R]) -> list[R]:
        """`call` of every shard at the same time. Raises when all have ended, what the first that failed raised."""
        try:
            if self._pool is None:
                return [call(self.shards[0])]
            calls = self._begun(self._pool, call)
            # A server's exchange serves one request at a time: after a failure, too, nothing stays under way.
            wait(calls)
            return [made.result() for made in calls]
        except Unreachable as error:
            raise self.explain(error) from error

    def _begun(self, pool: ThreadPoolExecutor, call: Callable[[ShardClient], R]) -> "list[Future[R]]":
        try:
            return [pool.submit(call, shard) for shard in self.shards]
        except RuntimeError as error:
            raise SessionError(f"the session is closed: {error}") from error

    def admit(self, reply: pb.JoinReply) -> None:
        """Every shard is asked in the name that the coordinator gave at Join, where it is since then; for the first
        time connected, too. Raises SessionError."""
        options = CHANNEL_OPTIONS(reply.worker_timeout or UNKNOWN_TIMEOUT, payloads=True)
        hosts = self._located(reply.moved)
        if not self.shards:
            self._connect(hosts, options, ping_interval(reply.worker_timeout or UNKNOWN_TIMEOUT))
        for shard, address in zip(self.shards, hosts, strict=True):
            if shard.address != address:
                told = event("server_moved", server=shard.server, address=str(address))
                log.info("server %d is at %s now", shard.server, address, extra=told)
                channel = _channel(address, options, self._credentials)
                # The former one stays: a try that is under way may still open a stream on it.
                self._channels.append(channel)
                shard.move(address, channel)
        self._hosts = hosts
        for shard in self.shards:
            shard.admit(MemberId(reply.job, reply.worker, reply.incarnation, reply.membership_token))

    def _located(self, moved: Sequence[str]) -> tuple[Address, ...]:
        hosts = list(self._hosts)
        try:
            for server, address in enumerate(moved[: len(hosts)]):
                if address:
                    hosts[server] = parse_address(address)
        except AddressError as error:
            raise SessionError(f"the coordinator told where a server is, and {error}") from error
        return tuple(hosts)

    def _watch(self, silence: float) -> None:
        """In a thread of its own, until the session ends."""
        said: list[str] = []
        while not self.closing.wait(silence / 3):
            for shard in self.shards:
                shard.look()
            kinds = [shard.transport for shard in self.shards]
            if kinds != said and "undecided" not in kinds:
                said = kinds
                self.on_transport(kinds)

    def give_up(self) -> None:
        """No more payload is of use: whoever waits for a server, which may hang, waits no more. From any thread."""
        self.pointless.set()
        for shard in self.shards:
            shard.cut()

    def close(self) -> None:
        self.closing.set()
        self.pointless.set()
        for shard in self.shards:
            shard.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for channel in (self.control, *self._channels):
            channel.close()


def _channel(address: Address, options: Options, credentials: Credentials) -> grpc.Channel:
    return open_channel(str(address), [*options, ("grpc.use_local_subchannel_pool", 1)], credentials)
