"""The model on the servers: real shards that execute the real log, or nothing when only time matters."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.shard import Shard, ShardState, arithmetic
from psserver.shard.payload_checks import norm_of
from pswire.decisions import entries
from pswire.decisions.entries import Entry
from pswire.model.plan import Plan, VariableSpec, weights_sha256
from pswire.transport.codecs import Encoder, codec_named

Floats = NDArray[np.float32]


class Store(Protocol):
    """`sizes`: bytes of each server's part on the wire."""

    @property
    def sizes(self) -> Sequence[int]: ...

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

    def __init__(self, servers: int, nbytes: int) -> None:
        self.sizes: Sequence[int] = [
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
        self._codec = codec_named(wire_dtype)
        # Workers' encoders do.
        self.remembers = self._codec.remembers
        self._shards = [
            Shard(plan, server, optimizer, versions=workers + 2, tensors=tensors, keep_bases=keep_bases)
            for server in range(len(plan.shards))
        ]
        self._folded: set[int] = set()
        # What each worker's encoders remember, one per shard, and whose a ticket is.
        self._encoders: dict[str, list[Encoder]] = {}
        self._holders: dict[int, str] = {}
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self.sizes: Sequence[int] = [self._codec.size(layout.elements) for layout in plan.shards]

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
        encoders = self._encoders_of(self._holders.get(ticket, ""))
        for shard, encoder, flat in zip(self._shards, encoders, flats, strict=True):
            payload = self._decoded(flat, encoder.encode(ticket, flat))
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
        encoders = self._encoders_of(self._holders.get(ticket, ""))
        for shard, encoder, flat in zip(self._shards, encoders, flats, strict=True):
            gradient = self._decoded(flat, encoder.encode(ticket, flat))[: shard.layout.trainable]
            squares.append(arithmetic.squares(gradient, arithmetic.LARGEST) or 0.0)
        return norm_of(squares)

    def _received(self, values: Floats) -> Floats:
        """A copy, as it comes out of the wire at the other end."""
        return self._decoded(values, self._codec.encode(values))

    def _decoded(self, values: Floats, payload: NDArray[Any]) -> Floats:
        """A new array like `values`, from what was made of them."""
        out = np.empty_like(values)
        if self._codec.exact:
            out[...] = values
        else:
            self._codec.decoder(out).feed(payload.data)
        return out

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
            case entries.Grant(worker, ticket) | entries.Initialise(worker, ticket):
                self._holders[ticket] = worker
            case entries.Commit(worker, ticket):
                for encoder in self._encoders_of(worker):
                    encoder.keep(ticket)
                self._holders.pop(ticket, None)
            case entries.Abandon(_, ticket) | entries.Cancel(_, ticket) | entries.Install(_, ticket):
                self._holders.pop(ticket, None)

    def _encoders_of(self, worker: str) -> list[Encoder]:
        if worker not in self._encoders:
            self._encoders[worker] = [self._codec.encoder(layout.elements) for layout in self.plan.shards]
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
