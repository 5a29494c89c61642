"""One shard of the model and its parts: admission, execution, reading, saving."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from psserver.fast import Backend, not_kept
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.receipts import receipt
from psserver.service.guard.calls import Watch
from psserver.service.guard.machine import default_limit
from psserver.service.guard.memory import Memory
from psserver.service.runtime import Runtime
from psserver.service.store.admission import Claims, PushSlots
from psserver.service.store.executor import Executor
from psserver.service.store.reading import Reading
from psserver.service.store.shard_part import PartSaver
from psserver.service.store.shared_memory import Sharing
from psserver.service.store.slow import said
from psserver.service.store.state import SharedShard
from psserver.shard import Shard, ShardState
from psserver.shard.staging import Slot
from psserver.table_figures import TableFigures
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.patience import REQUEST_WAITS
from pswire.transport.blocks import BlockCodec

log = logging.getLogger("ps-server")

#: Seconds after which it is said that compilation takes long.
COMPILES: Final = 1.0


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of a shard. `read_limit`: seconds that an unread grant may hold up an update. `patience`: seconds that a
    reader or a push waits for this shard to catch up with the log. `threads`: of an update."""

    arena_versions: int = 3
    read_limit: float = 5.0
    patience: float = REQUEST_WAITS
    threads: int = 1
    transport: str = "auto"
    # The job's; also the seconds that a peer may pause in the middle of a payload.
    worker_timeout: float = 10.0
    # Bytes that models and members may take; 0: a share of the machine's memory.
    memory_limit: int = 0
    # Called once everything permanent is loaded.
    loaded: Callable[[], object] = lambda: None


class ShardHost:
    """One shard and the parts that serve it. `orders` executes the log. The loop's thread owns it."""

    def __init__(self, server: int, options: HostOptions, runtime: Runtime) -> None:
        self.server = server
        self.options = options
        self.runtime = runtime
        self.state = SharedShard(runtime)
        self.orders = Executor(
            self.state, server, options.read_limit, runtime, lambda: self.reading.end_beyond()
        )
        self._backend = Backend(options.threads)
        self.sharing = Sharing(options.transport)
        self.memory = Memory(options.memory_limit or default_limit(), options.arena_versions)
        self.pushes = PushSlots(self.state, self.memory, server, options.patience)
        self.reading = Reading(
            self.state, self.orders, self.memory, self.sharing, server, options.patience, options.read_limit
        )
        self.saver = PartSaver(runtime, server, self.memory, self._saved, self.orders.copied)
        self.orders.save = lambda entry, shard: self.saver.save(entry, self.job, shard)
        self.watch = Watch()
        self.claims = Claims(self.state, self.watch, server, options.patience)

    # The job

    @property
    def job(self) -> str:
        """Name of the job that this server serves; empty before."""
        return self.state.job

    @property
    def secret(self) -> bytes:
        """The secret that proves the job's members."""
        return self.state.secret

    def open(self, job: str, secret: bytes) -> None:
        """Serve the job."""
        self.state.job, self.state.secret = job, secret
        self.state.changes.notify()

    def configure(
        self,
        plan: Plan,
        optimizer: Optimizer,
        tensors: TensorParts,
        deltas: BlockCodec | None = None,
    ) -> None:
        """Make a new shard. It executes what is ordered once its loops are compiled (`SharedShard.preparing`).

        `deltas`: the codec of the weights' changes.
        Raises Refused or MemoryError.
        """
        self.memory.admit(plan.shards[self.server], optimizer, tensors, deltas)
        shard = self.state.shard = Shard(
            plan,
            self.server,
            optimizer,
            versions=self.options.arena_versions,
            tensors=tensors,
            deltas=deltas,
            backend=self._backend,
            allocate=self.sharing.allocate,
        )
        self.memory.serve(shard)
        self._compile()

    def _compile(self) -> None:
        def work(shard: Shard) -> None:
            with said(
                lambda: "compiling the loops of this job; later starts load them from a cache", COMPILES
            ):
                shard.compile(stop=lambda: self.state.closed)

        def done(error: BaseException | None) -> None:
            self.options.loaded()
            if error is not None:
                reason = f"server {self.server} cannot compile what this job computes with: {error}"
                log.error("%s", reason, extra=event("compile_failed"))
                self.state.fail(reason)
            elif why := not_kept():
                log.info("compiled code is not kept: %s", why, extra=event("code_not_kept"))

        self._prepare(work, done)

    def _prepare(
        self, work: Callable[[Shard], object], done: Callable[[BaseException | None], object]
    ) -> None:
        """Work on the shard beside the loop before it executes anything. `done`: called on the loop with the error, if
        any, unless another model has taken the shard's place or the server is closed."""
        shard = self.state.shard
        assert shard is not None
        self.state.preparing += 1

        def ended(error: BaseException | None) -> None:
            if self.state.closed:
                # Compilation may have stopped early.
                return
            self.state.preparing -= 1
            if shard is self.state.shard:
                done(error)
            self.orders.execute_submitted()
            self.state.changes.notify()

        self.runtime.passes.start(lambda: work(shard), ended)

    def _saved(self) -> None:
        """Note that a part of a checkpoint is written or failed: its copy is freed."""
        self.state.admission.freed()
        self.state.changes.notify()

    def give(self, nbytes: int) -> None:
        """Release memory that was taken for a peer: there may be room for a push that waits."""
        self.memory.give(nbytes)
        self.state.admission.freed()

    def take_up(self, state: ShardState, entries: int) -> None:
        """Restore a new shard as of that many log entries, beside the loop. Raises StateError, with nothing changed."""
        shard = self.state.shard
        assert shard is not None
        shard.check(state)

        def work(shard: Shard) -> None:
            # Rows need compiled kernels.
            shard.compile(stop=lambda: self.state.closed)
            if not self.state.closed:
                shard.restore(state)

        def done(error: BaseException | None) -> None:
            if error is not None:
                reason = f"server {self.server} cannot restore its part of the model: {error}"
                log.error("%s", reason, extra=event("restore_failed"))
                self.state.fail(reason)
                return
            self.go_on(entries)

        self._prepare(work, done)

    def go_on(self, entries: int) -> None:
        """Continue behind the log entries that are executed."""
        self.state.executed = entries
        # Former members must join anew.
        self.state.changes.notify()

    def table_figures(self) -> list[TableFigures]:
        """Return what each table holds here and how its rows are used."""
        return self.state.shard.tables.figures() if self.state.shard else []

    @property
    def nbytes(self) -> int:
        """Bytes of this server's part of the model; 0 before it is known."""
        return self.state.shard.layout.nbytes if self.state.shard else 0

    @property
    def rows_nbytes(self) -> int:
        """The memory of this server's tables in bytes."""
        return self.state.shard.tables.nbytes if self.state.shard else 0

    @property
    def elements(self) -> int:
        """Elements of a payload."""
        return self.state.shard.layout.elements if self.state.shard else 0

    def close(self) -> None:
        """End execution, and refuse every waiting call."""
        self.state.close()
        # Passes run loops of the backend.
        self.runtime.passes.close()
        self._backend.close()

    # Pushes

    async def receipt(self, slot: Slot) -> bytes:
        """Return the receipt of a finished push, which its worker needs for the commit."""
        return receipt(self.secret, self.job, slot.ticket, self.server, slot.squares)

    # Executing

    async def execute(self, count: int, seconds: float) -> bool:
        """Execute what was submitted up to `count` entries, and wait for that at most `seconds`. Returns True when
        it is done, and if nothing is executed any more."""
        self.orders.execute_submitted()
        return self.state.executed >= count or await self.wait_executed(count, seconds) or self.state.over

    async def wait_executed(self, count: int, seconds: float) -> bool:
        """Wait until `count` entries are executed. Returns False after `seconds`, or when closed or failed."""
        state = self.state
        return (
            await state.changes.wait_for(lambda: state.executed >= count or state.over, seconds)
            and state.executed >= count
        )
