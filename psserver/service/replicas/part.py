"""A copy of a part of the model without the coordinator: it executes what the server that coordinates orders.

Orders and payloads are items of one log, in the order in which the part's primary took them. The primary executes an
order at once: the coordinator sends only what nothing undoes, and sends again what not all copies have.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from psserver.replication import Config
from psserver.service.errors import invalid, precondition, unavailable
from psserver.service.life.settings import ServerSettings
from psserver.service.net.follow import next_request
from psserver.service.net.orders import Execution
from psserver.service.net.registration import Call
from psserver.service.replicas import payloads
from psserver.service.replicas.bodies import Body
from psserver.service.replicas.giving import Given
from psserver.service.replicas.holding import PAYLOAD, Holding
from psserver.service.replicas.learning import restore
from psserver.service.replicas.same import OtherSettingsError, check_folder, check_same, described
from psserver.service.replicas.saving import named, saver_of
from psserver.service.replicas.shell import Shell
from psserver.service.replicas.transfer import CopyError, WholeCopy
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# The first byte of an item: a message of the coordinator, behind the number of the server that saves the part where the
# message orders that. Others are payloads.
_ORDERED = b"o"
#: Seconds that the shard may take to execute what a payload waits for.
PATIENCE: Final = 3600.0

Tell = Callable[[], Awaitable[None]]


def _to_save(request: shard_pb2.FollowRequest) -> list[int]:
    """Return the entries that order checkpoints."""
    return [each.index for each in request.decisions.decisions if each.HasField("save")]


async def _nobody() -> None:
    """Do nothing: a copy that follows reports to nobody."""


class PartCopy(Holding):
    """The server's side of the log of a part without the coordinator. The loop's thread owns it."""

    def __init__(
        self,
        settings: ServerSettings,
        host: payloads.ReplicatedHost,
        shell: Shell,
        changed: Callable[[], object],
    ) -> None:
        super().__init__(host, shell, changed, described(settings))
        self._settings = settings
        self._execution = Execution(host, settings.terms.servers)
        # The coordinator's first message, and the job's model.
        self._opening: shard_pb2.Open | None = None
        self._model: shard_pb2.Configure | None = None
        # The epoch of the coordinator that gives orders, and its stream.
        self._ordered_in = 0
        self._stream: Call | None = None
        # Held while an order is taken.
        self._turn = asyncio.Lock()
        host.orders.unread_goes = True

    @property
    def _begun(self) -> bool:
        return self._opening is not None

    def begin(self) -> None:
        """Lead, as the first primary."""
        self._lead()

    def _succeed(self, config: Config) -> None:
        self._lead()
        self._saving.succeed()
        self.takeovers += 1
        self._changed()

    def _depose(self, epoch: int) -> None:
        """Begin again as a learner: nothing but payloads without a receipt is lost with this copy."""
        if not self.outdated:
            self._begin_again(f"another server serves this part since term {epoch}")

    # The coordinator's orders

    async def follow_coordinator(self, call: Call) -> None:
        """Serve the stream of a server that coordinates; one of a later epoch takes its place. Raises Refused."""
        first = await next_request(call)
        if first is None or first.WhichOneof("message") != "open":
            raise invalid("expected a FollowRequest with open first")
        self._open(first.open)
        self._execution.tell_again()
        former, self._stream = self._stream, call
        if former is not None:
            former.caller.cancel()

        async def tell() -> None:
            # What another server sends again must be what not all copies have.
            await self.stable()
            await call.reply(self._progress())

        try:
            await tell()
            while (request := await next_request(call)) is not None:
                await self._take(request, tell)
                await tell()
        finally:
            if self._stream is call:
                self._stream = None

    def _open(self, message: shard_pb2.Open) -> None:
        """Accept a coordinator. Raises Refused, with nothing changed."""
        part, epoch = self._host.server, message.leads_in
        if not self.leads or self.outdated or epoch < self._ordered_in:
            raise unavailable(f"another server serves part {part}, or coordinates: wait")
        if (message.task_index, message.servers) != (part, self._settings.terms.servers):
            raise precondition(
                f"this server has part {part} of {self._settings.terms.servers}, but the coordinator takes it for "
                f"part {message.task_index} of {message.servers}: give all servers the same --ps-hosts"
            )
        known = self._opening
        if known is None:
            self._opened(message)
            self._order(shard_pb2.FollowRequest(open=message))
        elif (known.job, known.secret) != (message.job, message.secret):
            raise precondition(f"this server has a part of {known.job}, got a coordinator of {message.job}")
        self._ordered_in = epoch

    def _opened(self, message: shard_pb2.Open) -> None:
        """Serve the job. Raises Refused for one with another run folder."""
        assert self._settings.out is not None
        try:
            check_folder(self._settings.out, message.job)
        except OtherSettingsError as error:
            self.fail(error)
            raise precondition(str(error)) from error
        self._opening = message
        self._host.open(message.job, message.secret)
        log.info("following job %s", message.job, extra=event("following", job=message.job))

    def _order(self, request: shard_pb2.FollowRequest) -> None:
        saver = self._saving.choose()
        self._saving.lead(saver, _to_save(request))
        self._offer(_ORDERED + named(saver) + request.SerializeToString())

    async def _take(self, request: shard_pb2.FollowRequest, tell: Tell) -> None:
        """Take a message of the coordinator, but for what was taken before. Raises Refused."""
        async with self._turn:
            match request.WhichOneof("message"):
                case "configure":
                    if request.configure == self._model:
                        return
                    # A model that is refused is in no log.
                    await self._execution.take(request, tell)
                    self._model = request.configure
                    self._order(request)
                case "decisions" if request.decisions.decisions:
                    fresh = self._execution.fresh(request)
                    if fresh.decisions.decisions:
                        # Before a payload that needs them.
                        self._order(fresh)
                        await self._execute(fresh, tell)
                case _:
                    await self._execution.take(request, tell)
        self._attempt()

    async def _execute(self, request: shard_pb2.FollowRequest, tell: Tell) -> None:
        await self._execution.take(request, tell)
        versions = [each.apply.version for each in request.decisions.decisions if each.HasField("apply")]
        if versions:
            self.comparing.made(max(versions), self._execution.next_entry)
            self._host.orders.execute_submitted()

    def _progress(self) -> shard_pb2.FollowReply:
        reply, replica = self._execution.progress(), self._shell.replica
        reply.lag = max((replica.log.end - each.executed for each in replica.progress), default=0)
        return reply

    # The log

    async def _take_again(self, body: Body) -> None:
        kind, rest = bytes(body[:1]), memoryview(body)[1:]
        host = self._host
        if kind == PAYLOAD:
            # A payload needs its ticket.
            if not await host.execute(self._execution.next_entry, PATIENCE) or host.state.failure:
                raise RuntimeError(host.state.failure or "the shard does not execute the log")
            assert host.state.shard is not None
            payloads.stage(host.state.shard, rest)
            return
        saver, message = saver_of(rest)
        request = shard_pb2.FollowRequest.FromString(bytes(message))
        self._saving.follow(saver, _to_save(request))
        match request.WhichOneof("message"):
            case "open":
                self._opened(request.open)
            case "configure":
                self._model = request.configure
                await self._execution.take(request, _nobody)
            case _:
                await self._execute(request, _nobody)

    # Copies

    def _to_give(self) -> Given | None:
        if self._opening is None or self._turn.locked():
            return None
        return Given(self._host, self._execution.next_entry, self._about)

    def _about(self) -> dict[str, object]:
        assert self._opening is not None
        model = b"" if self._model is None else self._model.SerializeToString()
        return {
            "open": base64.b64encode(self._opening.SerializeToString()).decode(),
            "model": base64.b64encode(model).decode(),
            "entries": self._execution.next_entry,
        }

    async def _take_up(self, whole: WholeCopy) -> int:
        about, host = whole.about, self._host
        check_same(self._settings, about["settings"])
        self._opened(shard_pb2.Open.FromString(base64.b64decode(about["open"])))
        version = -1
        if about["model"]:
            self._model = shard_pb2.Configure.FromString(base64.b64decode(about["model"]))
            empty = shard_pb2.FollowRequest(configure=self._model)
            # The copy has what the job began with.
            empty.configure.checkpoint = ""
            await self._execution.take(empty, _nobody)
            shard = host.state.shard
            if shard is None:
                raise CopyError("expected a shard of the model in the copy, got none")
            host.state.check_going(host.server)
            # Nobody else has this shard yet.
            await host.runtime.passes.on_pool(lambda: restore(shard, whole))
            version = shard.version
            self._execution.tell(shard.fact)
        self._execution.next_entry = int(about["entries"])
        host.go_on(self._execution.next_entry)
        return version


class PartFollowRpc:
    """The method Follow on a server with replicas. `part`: its copy, if that is not of the coordinator's part."""

    def __init__(self, part: PartCopy | None) -> None:
        self._part = part

    async def follow(self, call: Call) -> None:
        if self._part is None:
            await next_request(call)
            raise precondition(
                "this server has no part that follows: expected Follow at a server of another part"
            )
        await self._part.follow_coordinator(call)
