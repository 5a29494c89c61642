"""A shard as recovery sees it: which orders it has executed, and whose payloads it holds. Without arithmetic.

What it would compute is stood for by a number that every order changes: two shards have the same number only if they
executed the same orders. It is saved and restored as the shard's weights are, by the servers' own code. So are rows of
a table, which updates make, change and evict: they are a function of the log, too.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from pslab.verify.invariants import expect
from psserver.checkpoint import settled
from psserver.coordinator import Record
from psserver.shard import ShardState
from psserver.shard.staging import OpenTicket
from psserver.shard.state import ShardFacts
from pswire.decisions import entries
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.model.tables import TableSpec, bucket, mix

OPTIMIZER: dict[str, object] = {"name": "sgd"}
# Numbers that float32 holds exactly.
MASK = (1 << 24) - 1


@cache
def plan_of(servers: int) -> Plan:
    """A model of six numbers, and a table."""
    return make_plan([VariableSpec("w", (6,))], servers, [TableSpec("t", 1)])


# Key -> the version that changed the row last, which is its value, too.
Rows = Mapping[int, int]
# The keys of all rows that there can be.
KEYS = mix(np.arange(9)).tolist()


def rows_after(rows: Rows, entry: entries.Entry) -> Rows:
    """The rows of all servers behind an entry of the log: each part of an update changes one, and old ones go."""
    if not isinstance(entry, entries.Apply):
        return rows
    changed = {**rows, **{KEYS[part.ticket % len(KEYS)]: entry.version for part in entry.parts}}
    if entry.version % 2 == 0:
        changed = {key: version for key, version in changed.items() if version > entry.version - 3}
    return changed


def rows_of(log: Iterable[Record], plan: Plan, server: int) -> Rows:
    """The rows of a server behind a log."""
    rows: Rows = {}
    for record in log:
        rows = rows_after(rows, record.entry)
    return owned(rows, plan, server)


def owned(rows: Rows, plan: Plan, server: int) -> Rows:
    start, stop = plan.buckets(server)
    where = bucket(np.array(list(rows), np.uint64)).tolist()
    return {key: rows[key] for key, at in zip(rows, where, strict=True) if start <= at < stop}


def chained(chain: int, entry: entries.Entry) -> int:
    """The number behind an entry of the log."""
    if isinstance(entry, entries.Install | entries.Fold | entries.Apply):
        return zlib.crc32(repr(entry).encode(), chain) & MASK
    return chain


class Shard:
    """The process of server `server`. `job`: its name in the generation whose orders it executes; empty: it waits.

    `saves`: parts of checkpoints that it has copied and not written, as (entry, job, state): the one whose turn it is,
    and the newest of those behind it, as `psserver.service.store.shard_part` has it.
    """

    def __init__(self, server: int, servers: int) -> None:
        self.server, self.plan = server, plan_of(servers)
        self.alive, self.reachable = True, True
        self.saves: list[tuple[int, str, ShardState]] = []
        self.forget()

    def forget(self) -> None:
        """It follows nobody, and holds nothing."""
        self.job, self.executed, self.chain, self.version = "", 0, 0, -1
        self.rows: Rows = {}
        self.open: dict[int, OpenTicket] = {}
        self.payloads: set[int] = set()
        self.folded: set[int] = set()

    def die(self) -> None:
        """`kill -9`."""
        self.alive = False
        self.saves.clear()
        self.forget()

    # Pushes

    def refuses(self, ticket: int) -> bool:
        """It is over, as this shard knows: what is pushed for it is void."""
        opened = self.open.get(ticket)
        return opened is None or opened.sealed

    def push(self, ticket: int) -> None:
        self.payloads.add(ticket)

    # Orders

    def execute(self, record: Record) -> None:
        """The next order. Raises InvariantViolation where it cannot be executed."""
        expect(record.index == self.executed, f"entry {record.index} comes behind {self.executed} of them")
        self.executed += 1
        entry = record.entry
        self.chain = chained(self.chain, entry)
        if isinstance(entry, entries.Apply):
            self.rows = owned(rows_after(self.rows, entry), self.plan, self.server)
        match entry:
            case entries.Commit():
                opened = self.open.get(entry.ticket)
                expect(
                    opened is not None and entry.ticket in self.payloads,
                    f"no payload of ticket {entry.ticket}",
                )
                self.open[entry.ticket].sealed = True
            case entries.Fold():
                self._use(entry.ticket)
                self.folded.add(entry.ticket)
            case entries.Apply():
                for part in entry.parts:
                    if part.ticket not in self.folded:
                        self._use(part.ticket)
                self.folded.clear()
                self.version = entry.version
            case entries.Grant():
                self.open[entry.ticket] = OpenTicket(entry.ticket, entry.worker, entry.turn, False)
            case entries.Initialise():
                self.open[entry.ticket] = OpenTicket(entry.ticket, entry.worker, None, True)
            case entries.Install():
                expect(entry.ticket in self.payloads, f"no initial values of ticket {entry.ticket}")
                self._release(entry.ticket)
                self.version = 0
            case entries.Drop() | entries.Cancel() | entries.Abandon():
                self._release(entry.ticket)
            case entries.Stop():
                self.folded.clear()
            case entries.Checkpoint():
                self.saves = [*self.saves[:1], (record.index, self.job, settled(self.state()))]
            case _:
                pass

    def _use(self, ticket: int) -> None:
        opened = self.open.get(ticket)
        expect(
            opened is not None and opened.sealed and ticket in self.payloads,
            f"ticket {ticket} is to be summed, and its payload is not here",
        )
        self._release(ticket)

    def _release(self, ticket: int) -> None:
        self.open.pop(ticket, None)
        self.payloads.discard(ticket)

    # What is saved

    def state(self) -> ShardState:
        """All that it holds."""
        layout, tickets = self.plan.shards[self.server], [replace(ticket) for ticket in self.open.values()]
        arrays = {f"version/{self.version}": np.full(layout.elements, self.chain, np.float32)}
        arrays |= {
            f"payload/{n}": np.full(layout.elements, n & MASK, np.float32) for n in sorted(self.payloads)
        }
        keys = sorted(self.rows)
        versions = np.array([self.rows[key] for key in keys], np.uint32)
        arrays |= {
            "table/0/keys": np.array(keys, np.uint64),
            "table/0/values": versions.astype(np.float32)[:, None],
            "table/0/touched": versions,
            "table/0/count": np.ones_like(versions),
        }
        facts = ShardFacts(
            plan=self.plan.fingerprint,
            server=self.server,
            optimizer=OPTIMIZER,
            tensors={},
            version=self.version,
            members=[],
            tickets=tickets,
            holds=[],
            # Of the open sum: the tickets whose payloads are in it.
            factors=[float(ticket) for ticket in sorted(self.folded)],
            pending=0.0,
            row_factors=[],
        )
        return ShardState(facts, arrays)

    def follow(self, job: str, kept: int, state: ShardState | None) -> None:
        """A coordinator gives it the state behind so many entries; None: of the beginning."""
        self.forget()
        self.job, self.executed = job, kept
        if state is None:
            return
        facts = state.facts
        expect((facts.plan, facts.server) == (self.plan.fingerprint, self.server), "another shard's state")
        self.version, self.folded = facts.version, {int(ticket) for ticket in facts.factors}
        self.open = {ticket.ticket: replace(ticket) for ticket in facts.tickets}
        self.payloads = set(state.numbered("payload"))
        keys, versions = state.arrays["table/0/keys"].tolist(), state.arrays["table/0/touched"].tolist()
        self.rows = dict(zip(keys, versions, strict=True))
        expect(state.arrays["table/0/values"][:, 0].tolist() == versions, "rows of several moments")
        for name, values in state.arrays.items():
            if name.startswith("table/"):
                continue
            kind, _, number = name.partition("/")
            held = set(values.tolist())
            if kind == "version":
                expect(len(held) == 1 and int(number) == self.version, f"weights of several moments: {held}")
                self.chain = int(held.pop())
            else:
                expect(held == {float(int(number) & MASK)}, f"the payload of ticket {number} is {held}")
