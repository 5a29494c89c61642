"""The model on the servers: real shards that execute the real log, or nothing when only time matters."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.coordinator.inputs import Executed
from psserver.decisions import entries
from psserver.decisions.entries import Entry
from psserver.facts import together
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.shard import Shard, ShardError, ShardState, arithmetic
from psserver.shard.payload_checks import norm_of
from psserver.table_figures import TableFigures
from pswire.model.groups import Groups
from pswire.model.plan import Plan, VariableSpec, weights_sha256
from pswire.model.rows import NO_ROWS, ReceivedRows, RowLayout, RowsByName
from pswire.model.tables import Keys, joined_parts
from pswire.model.variables import WholeTables
from pswire.transport.blocks import BlockCodec
from pswire.transport.codecs import FLOAT32, Codec, ElementDecoder, Elementwise, Encoder, NotFinite
from pswire.transport.rows import row_codec
from pswire.transport.wire import Wire, wire_named

Floats = NDArray[np.float32]


class SimulatedStore:
    """The model on the servers. This base class holds no arrays: messages have a size and no content (timing only).

    `sizes_down`: bytes of each server's part of a version on the wire. `empty`: there are no arrays to execute entries
    on, and no payload waits for memory. `remembers`: the workers' codecs do.
    """

    empty = True
    remembers = False
    sizes_down: Sequence[int]

    def __init__(self, servers: int, nbytes: int, fragments: int = 1) -> None:
        """`fragments`: groups that take turns, here of equal size."""
        self.sizes_down = [nbytes * (s + 1) // servers - nbytes * s // servers for s in range(servers)]
        self._fragments = fragments

    def sizes_up(self, version: int | None) -> Sequence[int]:
        """Return the bytes of each server's part of a contribution to `version`; None for initial values."""
        return [size // (1 if version is None else self._fragments) for size in self.sizes_down]

    def sizes_from(self, base: int | None, version: int) -> Sequence[int]:
        """Return the bytes of each server's part of a version on its way to a reader that has version `base`."""
        if base is None or self._fragments == 1 or not base <= version < base + self._fragments:
            return self.sizes_down
        return [size * (version - base) // self._fragments for size in self.sizes_down]

    def execute(self, entry: Entry) -> None:
        """Execute the next entry of the decision log."""

    def read(self, ticket: int, version: int) -> list[Floats] | None:
        """Return a copy of the version that a ticket was granted, which has read it then. None: the version is gone."""
        return []

    def admit(self, ticket: int, then: Callable[[], None]) -> None:
        """Call `then` once every shard has memory for the ticket's payload, or the ticket is closed."""
        then()

    def admit_waiting(self) -> None:
        """Let workers that wait for memory go on, after entries were executed.

        Never call it between two entries of one step: what these workers commit is decided after the step, and stands
        after it in the log.
        """

    def read_rows(self, version: int, keys: Mapping[str, Keys]) -> dict[str, Floats]:
        """Return rows of tables at a version that an open ticket was granted, or the newest."""
        return {}

    def table_figures(self) -> list[TableFigures]:
        """Return what each table holds on each server."""
        return []

    def push(self, ticket: int, flats: Sequence[Floats], rows: RowsByName = NO_ROWS) -> str | None:
        """Stage the payloads of an open ticket. Return the first NaN or Inf instead, as text, if there is one."""
        return None

    def residual(self, worker: str, dropped: int) -> int | None:
        """Return the ticket whose residual the worker's next payload is encoded with, once it knows that the commit of
        ticket `dropped` is dropped."""
        return None

    def norm(self, ticket: int) -> float:
        """Return the norm of the ticket's staged gradient, as receipts have it; NaN without arrays."""
        return math.nan

    @property
    def fact(self) -> Executed:
        """What the shards tell about the newest version. Not for a store without arrays."""
        raise NotImplementedError


class SizedStore(SimulatedStore):
    """Messages of the sizes that a model has under a codec, without content."""

    def __init__(self, plan: Plan, wire: Wire, fragments: int) -> None:
        self.plan = plan
        self._wire = wire
        self._groups = Groups(plan, fragments)
        self.sizes_down = [wire.down.size(layout) for layout in plan.shards]

    def sizes_up(self, version: int | None) -> Sequence[int]:
        up, servers = self._wire.up, range(len(self.plan.shards))
        if version is None:
            return [(FLOAT32 if up.scaled else up).size(layout) for layout in self.plan.shards]
        return [up.size(self._groups.of(version, server).layout) for server in servers]

    def sizes_from(self, base: int | None, version: int) -> Sequence[int]:
        codec = self._wire.deltas
        if base is None or (codec is None and self._groups.count == 1):
            return self.sizes_down
        return [
            whole if changed is None else changed
            for whole, changed in zip(self.sizes_down, self._changes(base, version, codec), strict=True)
        ]

    def _changes(self, base: int, version: int, codec: BlockCodec | None) -> Iterator[int | None]:
        """Yield the bytes that each server sends instead of a whole version; None if it sends that."""
        for server, layout in enumerate(self.plan.shards):
            layouts = [layout] * (version - base)
            if self._groups.count > 1:
                layouts = [part.layout for part in self._groups.changed(base, version, server)]
            size = sum((codec or self._wire.down).size(each) for each in layouts)
            sent = self._covers(server, base, version, size) and (layouts or base == version)
            yield size if sent else None

    def _covers(self, server: int, base: int, version: int, size: int) -> bool:
        """Return whether a server sends the changes since `base`: those that are shorter than a whole version."""
        return size < self.sizes_down[server]


class ShardStore(SizedStore):
    """Every server's shard. An order is executed at the moment of its decision.

    There are as many arena versions as workers may hold, so no update waits for a reader.
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
        wire = wire_named(wire_dtype)
        self._shards = [
            Shard(
                plan,
                server,
                optimizer,
                versions=workers + 2,
                tensors=tensors,
                keep_bases=keep_bases,
                deltas=wire.deltas,
            )
            for server in range(len(plan.shards))
        ]
        for shard in self._shards:
            # Not in the middle of a simulation, whose processor time may be limited.
            shard.compile()
        # After the shards, which say what is wrong with groups.
        super().__init__(plan, wire, tensors.fragments)
        self.remembers = self._wire.up.remembers
        self._folded: set[int] = set()
        # Worker -> its encoders, one per shard; held ticket -> worker.
        self._encoders: dict[str, list[Encoder]] = {}
        self._holders: dict[int, str] = {}
        # Tickets of initial values, which are never rounded by a codec with scales.
        self._raw: set[int] = set()
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def _covers(self, server: int, base: int, version: int, size: int) -> bool:
        stream = self._shards[server].stream
        return stream is None or stream.covers(base, version)

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
            shard.holds.has_read(ticket)
        return flats

    def read_rows(self, version: int, keys: Mapping[str, Keys]) -> dict[str, Floats]:
        """Return rows of tables at a version that an open ticket was granted, or the newest, as workers get them."""
        layout = RowLayout(self.plan)
        codec = row_codec(self._wire.down)
        found = []
        for shard, own in zip(self._shards, layout.wanted(keys), strict=True):
            rows = [_decoded(codec, each) for each in shard.read_rows(own, version)]
            found.append(ReceivedRows(own, rows, version))
        return layout.joined(keys, found)

    def admit(self, ticket: int, then: Callable[[], None]) -> None:
        self._waiting.append((ticket, then))
        self.admit_waiting()

    def admit_waiting(self) -> None:
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

    def push(self, ticket: int, flats: Sequence[Floats], rows: RowsByName = NO_ROWS) -> str | None:
        divided = RowLayout(self.plan).rows(rows) if rows else [()] * len(self._shards)
        try:
            payloads = self._arriving(ticket, flats)
        except NotFinite as error:
            return str(error)
        for shard, payload, several in zip(self._shards, payloads, divided, strict=True):
            problem = shard.checks.nonfinite(payload)
            codec = row_codec(self._wire.up)
            own = tuple((keys, _decoded(codec, each)) for keys, each in several)
            squares = shard.checks.measure_rows(own)
            if problem is not None or squares is None:
                return problem or "a number that is not finite in rows"
            slot = shard.begin(ticket)
            shard.checks.copy_in(slot, payload, 0)
            slot.rows, slot.squares = own, slot.squares + squares
            shard.staging.finish(slot)
        return None

    def norm(self, ticket: int) -> float:
        return norm_of(shard.staging.squares(ticket) for shard in self._shards)

    @property
    def fact(self) -> Executed:
        facts = [shard.fact for shard in self._shards]
        return together(facts[0].version, facts, self.plan)

    def encode(self, ticket: int, flats: Sequence[Floats]) -> float:
        """Encode a payload that matters only to its worker's encoders. Return its norm, as `norm` does."""
        squares = []
        for shard, payload in zip(self._shards, self._arriving(ticket, flats), strict=True):
            gradient = payload[: shard.layout.trainable]
            squares.append(arithmetic.squares(gradient) or 0.0)
        return norm_of(squares)

    def _received(self, values: Floats) -> Floats:
        """Return a copy as the receiver decodes it."""
        codec = self._wire.down
        if codec.exact:
            return values.copy()
        out = np.empty_like(values)
        ElementDecoder(codec, out).feed(codec.encode(values).data)
        return out

    def _arriving(self, ticket: int, flats: Sequence[Floats]) -> list[Floats]:
        """Return what the servers receive, as new arrays. Raises NotFinite."""
        raw = ticket in self._raw
        codec: Codec = FLOAT32 if raw and self._wire.up.scaled else self._wire.up
        if codec.exact:
            return [flat.copy() for flat in flats]
        found = []
        for shard, encoder, flat in zip(
            self._shards, self._encoders_of(self._holders.get(ticket, "")), flats, strict=True
        ):
            part, out = shard.part(ticket), np.zeros_like(flat)
            decoded = np.empty(part.layout.elements, np.float32)
            codec.decoder(part.layout, decoded).feed(encoder.encode(ticket, flat, part).data)
            part.put(out, decoded)
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
        """Prepare to encode the payload of a logged commit again, whether or not its worker knew that its commit before
        was dropped. Raises ShardError if neither leads to the logged residual."""
        base = self.residual(commit.worker, 0)
        if base is not None and base != commit.residual:
            base = self.residual(commit.worker, base)
        if base != commit.residual:
            raise ShardError(
                f"ticket {commit.ticket} was encoded with the residual of ticket {commit.residual}, expected {base}"
            )

    # Checkpoints

    @property
    def folded(self) -> frozenset[int]:
        """Tickets that are folded into the coming update."""
        return frozenset(self._folded)

    def states(self) -> list[ShardState]:
        """Return the states of all shards."""
        return [shard.state() for shard in self._shards]

    def restore(self, states: Sequence[ShardState], folded: Sequence[int]) -> None:
        """Take over these states before the first entry. `folded`: tickets of the coming update. Raises StateError."""
        for shard, state in zip(self._shards, states, strict=True):
            shard.restore(state)
        self._folded = set(folded)

    # The memory of workers' encoders, as in `psworker.data.shard_client`

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

    # The newest version

    def flats(self) -> list[Floats]:
        """Return the newest version, one flat array per shard."""
        found = [shard.arena.values(shard.version) for shard in self._shards]
        return [values for values in found if values is not None]

    def weights(self) -> dict[str, Floats]:
        names = [variable.name for variable in self.plan.variables]
        return dict(zip(names, self.plan.gather(self.flats()), strict=True))

    def slots(self) -> list[dict[str, Floats]]:
        """Return the optimizer's slots, each as variables by name, with zeros for those that are not trained."""
        names = [variable.name for variable in self.plan.variables]
        kept = [shard.slots for shard in self._shards]
        return [
            dict(zip(names, self.plan.gather_trained([each[slot] for each in kept]), strict=True))
            for slot in kept[0]
        ]

    def sha256(self) -> str:
        variables: Sequence[VariableSpec] = self.plan.variables
        return weights_sha256(variables, list(self.weights().values()), self.tables())

    def table_figures(self) -> list[TableFigures]:
        return [table for shard in self._shards for table in shard.tables.figures()]

    def tables(self) -> WholeTables:
        """Return all rows of the newest version, by table."""
        return {
            spec.name: joined_parts(spec, [shard.tables.tables[number].octets() for shard in self._shards])
            for number, spec in enumerate(self.plan.tables)
        }

    @property
    def version(self) -> int:
        """The newest version."""
        return self._shards[0].version

    @property
    def installed(self) -> bool:
        return bool(self._shards) and self._shards[0].version >= 0


def _decoded(codec: Elementwise, rows: Floats) -> Floats:
    """Return rows as their receiver has them."""
    if codec.exact:
        return rows
    out = np.empty_like(rows)
    ElementDecoder(codec, out).feed(codec.encode(rows).data)
    return out
