"""Follow, seen from the coordinator: one stream of decisions to each other server."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from psserver.service.rpc.adapters import apply_to_wire, order_to_wire
from psserver.shard import Apply, Order
from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.failures import reason
from pswire.v1 import memory_pb2, shard_pb2, shard_pb2_grpc

log = logging.getLogger("ps-server")

# Between two questions to a server that executes nothing, in seconds.
ASK_EVERY = 0.5
# Between attempts to reach a server that is not there yet, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


class Follower:
    """Delivers the log to one remote shard. `state` is "connecting", "ready", "ended" or "lost".

    Its own thread sends and receives on the stream. `_progress` owns `state`,
    `executed`, `nbytes` and `memory`; anything may be put into `_outbox`, under the job's lock.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        opening: shard_pb2.Open,
        worker_timeout: float,
        on_lost: Callable[[int, str, str], None],
        on_tried: Callable[[int, int, bool, float], None],
    ) -> None:
        self.server = server
        self.address = address
        self.state = "connecting"
        self.executed = 0
        self.nbytes = 0
        # What it last said of its memory.
        self.memory = memory_pb2.Memory()
        self._asked = 0.0
        # It refused to publish a version that is not finite, and executes nothing any more.
        self.diverged = False
        self._opening = opening
        self._on_lost = on_lost
        # Called with the server, and the number, finiteness and largest magnitude of the trial that it has answered.
        self._on_tried = on_tried
        # The number of the last one. Owned by the stream's thread.
        self._tried = 0
        self._outbox: queue.SimpleQueue[shard_pb2.FollowRequest | None] = queue.SimpleQueue()
        self._progress = threading.Condition()
        self._closing = threading.Event()
        # Connected, or no longer to be.
        self._woken = threading.Event()
        self.channel = grpc.insecure_channel(str(address), CHANNEL_OPTIONS(worker_timeout))
        self._thread = threading.Thread(target=self._run, name=f"follower-{server}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def configure(self, message: shard_pb2.Configure) -> None:
        self._outbox.put(shard_pb2.FollowRequest(configure=message))

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        decisions = shard_pb2.Decisions(decisions=[order_to_wire(i, order) for i, order in orders])
        self._outbox.put(shard_pb2.FollowRequest(decisions=decisions))

    def try_update(self, trial: int, update: Apply) -> None:
        """Would the update be finite there, behind all that was sent?"""
        message = shard_pb2.Trial(number=trial, update=apply_to_wire(update))
        self._outbox.put(shard_pb2.FollowRequest(trial=message))

    def ask(self) -> None:
        """Somebody wants to know what it holds: it is asked now and then, and says so when it is."""
        now = time.monotonic()
        if now - self._asked >= ASK_EVERY:
            self._asked = now
            self._outbox.put(shard_pb2.FollowRequest(decisions=shard_pb2.Decisions()))

    def wait_executed(self, count: int, seconds: float) -> bool:
        with self._progress:
            self._progress.wait_for(
                lambda: self.executed >= count or self.diverged or self.state == "lost", seconds
            )
            return self.executed >= count

    def shutdown(self, exit_code: ExitCode, reason: str) -> None:
        """Send the server its exit code, and wait until it has read it."""
        self._closing.set()
        self._woken.set()
        message = shard_pb2.Shutdown(reason=reason, exit_code=int(exit_code))
        self._outbox.put(shard_pb2.FollowRequest(shutdown=message))
        self._outbox.put(None)
        self._thread.join(timeout=5.0)
        self.channel.close()

    def _run(self) -> None:
        if not self._connect():
            return
        stub = shard_pb2_grpc.ShardStub(self.channel)
        try:
            for reply in stub.Follow(self._requests()):
                check(reply)
                self._received(reply)
            lost = "it ended the decision stream"
        except grpc.RpcError as error:
            lost = reason(error)
        except BoundError as error:
            lost = str(error)
        expected = self._closing.is_set()
        with self._progress:
            self.state = "ended" if expected else "lost"
            self._progress.notify_all()
        if not expected:
            self._on_lost(self.server, "server", f"server {self.server} at {self.address} was lost: {lost}")

    def _connect(self) -> bool:
        """Keep trying; log which server cannot be reached. False when the job ends meanwhile."""
        pause = FIRST_PAUSE
        waited = 0.0
        grpc.channel_ready_future(self.channel).add_done_callback(lambda _: self._woken.set())
        while not self._woken.wait(pause):
            waited += pause
            log.warning(
                "server %d at %s cannot be reached (tried for %.1f s, still trying)",
                self.server,
                self.address,
                waited,
                extra=event(
                    "server_unreachable", server=self.server, address=str(self.address), seconds=waited
                ),
            )
            pause = min(2 * pause, LONGEST_PAUSE)
        return not self._closing.is_set()

    def _requests(self) -> Iterator[shard_pb2.FollowRequest]:
        yield shard_pb2.FollowRequest(open=self._opening)
        while (request := self._outbox.get()) is not None:
            yield request

    def _received(self, reply: shard_pb2.FollowReply) -> None:
        with self._progress:
            if self.state == "connecting":
                self.state = "ready"
                told = event("server_ready", server=self.server, address=str(self.address))
                log.info("server %d at %s is ready", self.server, self.address, extra=told)
            self.executed, self.nbytes, self.diverged = reply.executed, reply.bytes, reply.diverged
            if reply.HasField("memory"):
                self.memory = reply.memory
            self._progress.notify_all()
        if reply.trial > self._tried:
            self._tried = reply.trial
            self._on_tried(self.server, reply.trial, reply.finite, reply.largest)
        if reply.error and not self._closing.is_set():
            self._on_lost(self.server, "diverged" if reply.diverged else "server", reply.error)
