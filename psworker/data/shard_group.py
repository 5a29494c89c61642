"""All servers of a job: a client for each, called at the same time."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import grpc

from pswire import patience
from pswire.addresses import Address, AddressError, parse_address
from pswire.logs.events import event
from pswire.patience import UNKNOWN_TIMEOUT
from pswire.security.credentials import Credentials
from pswire.transport.channels import CHANNEL_OPTIONS, Options
from pswire.transport.connecting import open_channel
from pswire.transport.leader import Leader
from pswire.v1 import coordinator_pb2 as pb
from psworker.data.carrier import Settings
from psworker.data.shard_client import ShardClient
from psworker.errors import Refused, SessionError, Unreachable

log = logging.getLogger("ps-worker")

R = TypeVar("R")


class ShardGroup:
    """`shards`: the clients, in task order, once this worker has joined.

    `closing`: the session ends, and no call waits any more. `pointless`: payloads are of no use any more, because the
    session ends or the job has failed.
    """

    def __init__(self, hosts: tuple[Address, ...], settings: Settings, *, replicas: bool = False) -> None:
        """`replicas`: each pair of `hosts` has a part, which one of them serves at a time."""
        self._settings = settings
        self.closing, self.pointless = threading.Event(), threading.Event()
        # The session sets these three. Why a server does not answer or refuses, judged by what else is known:
        self.explain: Callable[[SessionError], SessionError] = lambda error: error
        # Why a ticket is void, if it is: a membership sends nothing for tickets of another one.
        self.void: Callable[[int], str | None] = lambda ticket: None
        # Called with the transport to each server when one changes.
        self.on_transport: Callable[[Sequence[str]], object] = lambda kinds: None
        # What it was called with last.
        self._told: list[str] = []
        self._telling = threading.Lock()
        self._channels: list[grpc.Channel] = []
        # The timeout by which control channels notice that a connection is dead.
        self._timeout = UNKNOWN_TIMEOUT
        # Data has a connection of its own to each server, so that control messages never queue behind payloads.
        self.control: grpc.Channel
        self._seek_part: Callable[[int], Callable[[], bool]] | None = None
        # The epochs in which the parts from part 1 on are served where they are looked for. The lock guards moves.
        self._epochs: dict[int, int] = {}
        self._moving = threading.Lock()
        if replicas:
            leader = self.control = Leader(hosts, self._open_control, _leads, self._serve)
            self._seek_part = lambda part: self._part_seeker(leader, part)
            hosts = hosts[::2][: len(settings.plan.shards)]
        else:
            self.control = self._open_control(hosts[0])
        self._options: Options = []
        self.shards: list[ShardClient] = []
        # The address of server 0, and the servers' addresses by the newest Join.
        self._first = hosts[0]
        self._hosts = hosts
        # Two threads per server: a version may come in while a gradient goes out.
        self._pool = (
            ThreadPoolExecutor(2 * len(hosts), thread_name_prefix="shard") if len(hosts) > 1 else None
        )
        if replicas:
            leader.watch(self.closing)

    def seeker(self) -> Callable[[], bool] | None:
        """Return a function that says whether another server leads than when it was called last, and asks all servers
        unless it is known already; None where no other can lead."""
        leader = self.control
        return _moves(lambda: leader.address, leader.seek) if isinstance(leader, Leader) else None

    def each(self, call: Callable[[ShardClient], R]) -> list[R]:
        """Call with every shard at the same time. When all have ended, raise what the first that failed raised."""
        try:
            if self._pool is None:
                return [call(self.shards[0])]
            calls = self._submitted(self._pool, call)
            # A server's exchange serves one request at a time, so nothing may stay under way, even after a failure.
            wait(calls)
            return [made.result() for made in calls]
        except (Unreachable, Refused) as error:
            raise self.explain(error) from error

    def first(self, call: Callable[[ShardClient], R]) -> R:
        """Call with the shard of server 0, which takes commits. Raises as `each`."""
        try:
            return call(self.shards[0])
        except (Unreachable, Refused) as error:
            raise self.explain(error) from error

    def _submitted(self, pool: ThreadPoolExecutor, call: Callable[[ShardClient], R]) -> "list[Future[R]]":
        try:
            return [pool.submit(call, shard) for shard in self.shards]
        except RuntimeError as error:
            raise SessionError(f"the session is closed: {error}") from error

    def admit(self, joined: pb.JoinReply) -> None:
        """Take the answer to a Join: connect for the first time, follow the one that leads, use the new membership."""
        timeout = joined.worker_timeout or UNKNOWN_TIMEOUT
        self._options = CHANNEL_OPTIONS(timeout, payloads=True)
        if timeout != self._timeout:
            self._timeout = timeout
            self._reopen_control()
        with self._moving:
            if isinstance(self.control, Leader):
                self._hosts = (self.control.address, *self._hosts[1:])
            if not self.shards:
                self._connect(
                    replace(self._settings, silence=patience.silence(timeout), stuck=patience.stuck(timeout))
                )
            self._move()
        for shard in self.shards:
            shard.admit(joined)

    def _open_control(self, address: Address) -> grpc.Channel:
        options = CHANNEL_OPTIONS(self._timeout, session=True)
        return _channel(address, options, self._settings.credentials)

    def _reopen_control(self) -> None:
        """Have sessions opened from now on notice a dead connection in the job's own time."""
        if isinstance(self.control, Leader):
            self.control.reopen()
            return
        former, self.control = self.control, self._open_control(self._first)
        self._channels.append(former)

    def _move(self) -> None:
        """Have each server looked for where it is now."""
        for shard, address in zip(self.shards, self._hosts, strict=True):
            if shard.address != address:
                log.info(
                    "server %d is at %s now",
                    *(shard.server, address),
                    extra=event("server_moved", server=shard.server, address=str(address)),
                )
                # The former channel stays open: a try that is under way may still open a stream on it.
                shard.move(address, self._open(address))

    def _serve(self, parts: Sequence[pb.PartServer]) -> None:
        """Take what a server says about who serves the parts from part 1 on."""
        with self._moving:
            hosts = list(self._hosts)
            for part, served in enumerate(parts[: len(hosts) - 1], start=1):
                if served.address and served.epoch >= self._epochs.get(part, 0):
                    self._epochs[part] = served.epoch
                    with suppress(AddressError):
                        hosts[part] = parse_address(served.address)
            self._hosts = tuple(hosts)
            if self.shards and not self.closing.is_set():
                self._move()

    def _part_seeker(self, leader: Leader, part: int) -> Callable[[], bool]:
        """Return the same about the server of a part. Part 0 moves with the session, and nobody is asked."""
        return _moves(lambda: self._hosts[part], leader.seek if part else lambda: None)

    def _connect(self, settings: Settings) -> None:
        for server, address in enumerate(self._hosts):
            channel = self._open(address)
            self.shards.append(
                ShardClient(
                    *(server, address, channel, settings, self.pointless),
                    # A lambda, because the session sets `void` later.
                    lambda ticket: self.void(ticket),
                    connected=self._tell_transports,
                    seek=self._seek_part and self._seek_part(server),
                )
            )

    def _open(self, address: Address) -> grpc.Channel:
        channel = _channel(address, self._options, self._settings.credentials)
        self._channels.append(channel)
        return channel

    def _tell_transports(self) -> None:
        """Tell the session by what each server is reached, once that is decided for all."""
        with self._telling:
            kinds = [shard.carrier.kind for shard in self.shards]
            if kinds != self._told and "undecided" not in kinds:
                self._told = kinds
                self.on_transport(kinds)

    def give_up(self) -> None:
        """Payloads are of no use any more: end the calls that wait for a server. Any thread may call this."""
        self.pointless.set()
        for shard in self.shards:
            shard.close()

    def close(self) -> None:
        self.closing.set()
        self.pointless.set()
        for shard in self.shards:
            shard.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for channel in (self.control, *self._channels):
            channel.close()


def _moves(where: Callable[[], Address], seek: Callable[[], object]) -> Callable[[], bool]:
    """Return a function that says whether an address has changed since its last call. It seeks if not."""
    known = where()

    def moved() -> bool:
        nonlocal known
        if where() == known:
            seek()
        before, known = known, where()
        return known != before

    return moved


def _leads(address: Address, epoch: int) -> None:
    log.warning(
        "the server at %s leads the job (term %d of the servers)",
        *(address, epoch),
        extra=event("leader_changed", address=str(address), epoch=epoch),
    )


def _channel(address: Address, options: Options, credentials: Credentials) -> grpc.Channel:
    return open_channel(str(address), [*options, ("grpc.use_local_subchannel_pool", 1)], credentials)
