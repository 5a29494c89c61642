"""The model on the servers: real shards that execute the real log, or nothing when only time matters."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.shard import Shard, ShardError, ShardState, arithmetic
from psserver.shard.payload_checks import norm_of
from pswire.decisions import entries
from pswire.decisions.entries import Entry
from pswire.model.plan import Plan, VariableSpec, weights_sha256
from pswire.transport.codecs import FLOAT32, Codec, ElementDecoder, Encoder, NotFinite
from pswire.transport.wire import wire_named

Floats = NDArray[np.float32]


class Store(Protocol):
    """`sizes_up`, `sizes_down`: bytes of each server's part of a gradient and of a version on the wire."""

    @property
    def sizes_up(self) -> Sequence[int]: ...

    @property
    def sizes_down(self) -> Sequence[int]: ...

    @property
    def remembers(self) -> bool:
        """Workers' codecs do."""
        ...

    @property
    def empty(self) -> bool:
        """It holds no arrays: nothing is to be executed, and no payload waits for memory."""
        ...

    def execute(self, entry: Entry) -> None:
        """An entry of the decision log, in order."""
        ...

    def read(self, ticket: int, version: int) -> list[Floats] | None:
        """A copy of the version that a ticket was granted; its pin is over. None: it is gone."""
        ...

    def admit(self, ticket: int, then: Callable[[], None]) -> None:
        """`then` happens once every shard's memory admits the ticket's payload, or its ticket is closed."""
        ...

    def let_in(self) -> None:
        """Entries were executed: workers that wait for memory may go on. Never between two entries of one step: what
        the waiting ones commit is decided after them, so it stands behind them in the log."""
        ...

    def push(self, ticket: int, flats: Sequence[Floats]) -> str | None:
        """Put the payloads of an open ticket into staging. Names the first NaN or Inf instead, if there is one."""
        ...

    def residual(self, worker: str, dropped: int) -> int | None:
        """The ticket whose commit left behind what the worker's next payload is encoded with, once it has heard that
        `dropped` is."""
        ...

    def ordinary(self, ticket: int) -> bool:
        """The ticket's payload, which was pushed, is an ordinary one on every server."""
        ...

    def norm(self, ticket: int) -> float:
        """Of the gradient in the ticket's payload, which was pushed, as receipts have it; NaN without arrays."""
        ...

    def try_update(self, update: entries.Apply) -> tuple[bool, float]:
        """Would this update be finite on every server, and what would be the largest magnitude?"""
        ...


class TimingOnlyStore:
    """Timing only: messages have a size, and nothing in them."""

    empty = True
    remembers = False

    def __init__(self, servers: int, nbytes: int) -> None:
        self.sizes_up = self.sizes_down = [
            nbytes * (s + 1) // servers - nbytes * s // servers for s in range(servers)
        ]

    def execute(self, entry: Entry) -> None:
        pass

    def read(self, ticket: int, version: int) -> list[Floats] | None:
        return []

    def admit(self, ticket: int, then: Callable[[], None]) -> None:
        then()

    def let_in(self) -> None:
        pass

    def push(self, ticket: int, flats: Sequence[Floats]) -> str | None:
        return None

    def residual(self, worker: str, dropped: int) -> int | None:
        return None

    def ordinary(self, ticket: int) -> bool:
        return True

    def norm(self, ticket: int) -> float:
        return math.nan

    def try_update(self, update: entries.Apply) -> tuple[bool, float]:
        return True, 0.0


class ShardStore:
    """Every server's shard. An order is executed in the moment of its decision.

    There are as many arena versions as workers may hold, so an update never
    waits for a reader; the daemons' lease has nothing to do here.
    """

    empty = False

    def __init__(
        self,
        plan: Plan,
        optimizer: Optimizer,
        tensors: TensorParts,
        *,
        workers: int,
        wire_dtype: str,
        keep_bases: bool = False,
    ) -> None:
        self.plan = plan
        self._wire = wire_named(wire_dtype)
        self.remembers = self._wire.up.remembers
        self._shards = [
            Shard(plan, server, optimizer, versions=workers + 2, tensors=tensors, keep_bases=keep_bases)
            for server in range(len(plan.shards))
        ]
        self._folded: set[int] = set()
        # What each worker's encoders remember, one per shard, and whose a ticket is.
        self._encoders: dict[str, list[Encoder]] = {}
        self._holders: dict[int, str] = {}
        # Tickets for initial values, which no codec with scales rounds.
        self._raw: set[int] = set()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.sizes_up = [self._wire.up.size(layout) for layout in plan.shards]
        self.sizes_down = [self._wire.down.size(layout) for layout in plan.shards]

    def execute(self, entry: Entry) -> None:
        self._remember(entry)
        order = entry.order(self._folded)
        for shard in self._shards:
            shard.execute(order)

    def read(self, ticket: int, version: int) -> list[Floats] | None:
        flats = []
        for shard in self._shards:
            values = shard.arena.values(version)
            if values is None:
                return None
            flats.append(self._received(values))
            shard.arena.unpin(ticket)
        return flats

    def admit(self, ticket: int, then: Callable[[], None]) -> None:
        self._waiting.append((ticket, then))
        self.let_in()

    def let_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for ticket, then in waiting:
            if self._admits(ticket):
                then()
            else:
                self._waiting.append((ticket, then))

    def _admits(self, ticket: int) -> bool:
        return all(
            shard.refusal(ticket) is not None or shard.staging.admits(ticket) for shard in self._shards
        )

    def push(self, ticket: int, flats: Sequence[Floats]) -> str | None:
        try:
            payloads = self._arriving(ticket, flats)
        except NotFinite as error:
            return str(error)
        for shard, payload in zip(self._shards, payloads, strict=True):
            problem = shard.checks.nonfinite(payload)
            if problem is not None:
                return problem
            slot = shard.begin(ticket)
            shard.checks.copy_in(slot, payload, 0)
            shard.staging.finish(slot)
        return None

    def ordinary(self, ticket: int) -> bool:
        return all(shard.staging.ordinary(ticket) for shard in self._shards)

    def norm(self, ticket: int) -> float:
        return norm_of(shard.staging.squares(ticket) for shard in self._shards)

    def try_update(self, update: entries.Apply) -> tuple[bool, float]:
        order = update.update(self._folded)
        found = [shard.try_update(order) for shard in self._shards]
        return all(finite for finite, _ in found), max(largest for _, largest in found)

    def encode(self, ticket: int, flats: Sequence[Floats]) -> float:
        """A payload that nothing depends on but what its worker's encoders remember. Returns its norm as `norm`."""
        squares = []
        for shard, payload in zip(self._shards, self._arriving(ticket, flats), strict=True):
            gradient = payload[: shard.layout.trainable]
            squares.append(arithmetic.squares(gradient, arithmetic.LARGEST) or 0.0)
        return norm_of(squares)

    def _received(self, values: Floats) -> Floats:
        """A copy, as it comes out of the wire at the other end."""
        codec = self._wire.down
        if codec.exact:
            return values.copy()
        out = np.empty_like(values)
        ElementDecoder(codec, out).feed(codec.encode(values).data)
        return out

    def _arriving(self, ticket: int, flats: Sequence[Floats]) -> list[Floats]:
        """What the servers receive: new arrays. Raises NotFinite."""
        codec: Codec = FLOAT32 if ticket in self._raw and self.remembers else self._wire.up
        if codec.exact:
            return [flat.copy() for flat in flats]
        found = []
        for shard, encoder, flat in zip(
            self._shards, self._encoders_of(self._holders.get(ticket, "")), flats, strict=True
        ):
            out = np.empty_like(flat)
            codec.decoder(shard.layout, out).feed(encoder.encode(ticket, flat).data)
            found.append(out)
        return found

    def residual(self, worker: str, dropped: int) -> int | None:
        if not self.remembers:
            return None
        encoders = self._encoders_of(worker)
        for encoder in encoders:
            encoder.take_back(dropped)
        return encoders[0].base

    def go_on_from(self, commit: entries.Commit) -> None:
        """Before the payload of a commit of the log is encoded again: its worker had heard by then that the one before
        was dropped, or not. Raises ShardError where the log says something else of it."""
        base = self.residual(commit.worker, 0)
        if base is not None and base != commit.residual:
            base = self.residual(commit.worker, base)
        if base != commit.residual:
            raise ShardError(
                f"ticket {commit.ticket} was encoded with what ticket {commit.residual} left behind, expected {base}"
            )

    # Checkpoints

    @property
    def folded(self) -> frozenset[int]:
        """What the coming update has."""
        return frozenset(self._folded)

    def states(self) -> list[ShardState]:
        """Of all servers, as they are now."""
        return [shard.state() for shard in self._shards]

    def restore(self, states: Sequence[ShardState], folded: Sequence[int]) -> None:
        """Go on from there, in place of the first entry. `folded`: what the coming update has. Raises StateError."""
        for shard, state in zip(self._shards, states, strict=True):
            shard.restore(state)
        self._folded = set(folded)

    # What workers' encoders remember, as `psworker.data.shard_client` has it

    def _remember(self, entry: Entry) -> None:
        match entry:
            case entries.Join(worker):
                self._encoders.pop(worker, None)
            case entries.Initialise(worker, ticket):
                self._holders[ticket] = worker
                self._raw.add(ticket)
            case entries.Grant(worker, ticket):
                self._holders[ticket] = worker
            case entries.Commit(worker, ticket):
                for encoder in self._encoders_of(worker):
                    encoder.keep(ticket)
                self._holders.pop(ticket, None)
            case entries.Abandon(_, ticket) | entries.Cancel(_, ticket) | entries.Install(_, ticket):
                self._holders.pop(ticket, None)

    def _encoders_of(self, worker: str) -> list[Encoder]:
        if worker not in self._encoders:
            self._encoders[worker] = [self._wire.up.encoder(layout) for layout in self.plan.shards]
        return self._encoders[worker]

    # The end

    def flats(self) -> list[Floats]:
        """The newest version, one payload per shard."""
        found = [shard.arena.values(shard.version) for shard in self._shards]
        return [values for values in found if values is not None]

    def weights(self) -> dict[str, Floats]:
        names = [variable.name for variable in self.plan.variables]
        return dict(zip(names, self.plan.gather(self.flats()), strict=True))

    def slots(self) -> list[dict[str, Floats]]:
        """What an optimizer that keeps no workers apart remembers: of each of its slots the variables by name, zeros of
        those that are not trained."""
        names = [variable.name for variable in self.plan.variables]
        kept = [shard.slots[""] for shard in self._shards]
        return [
            dict(zip(names, self.plan.gather_trained([each[slot] for each in kept]), strict=True))
            for slot in kept[0]
        ]

    def sha256(self) -> str:
        variables: Sequence[VariableSpec] = self.plan.variables
        return weights_sha256(variables, list(self.weights().values()))

    @property
    def installed(self) -> bool:
        return bool(self._shards) and self._shards[0].version >= 0
