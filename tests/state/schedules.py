"""Random schedules that are saved and restored on the way, beside the same ones that are left alone.

Both draw the same choices. If anything was lost, some later entry of the log or some bit of the weights,
slots or memory differs. `run(schedules, seed)` plays so many for each built-in policy.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pslab.verify.guarded import GuardedHarness, StagedShard
from psserver.decisions import entries
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.optimizers import names as optimizer_names
from psserver.policies import TensorParts, build, names
from psserver.shard import Shard, ShardState, reshard
from pswire.model.plan import make_plan
from tests.coordinator.settings import Setting
from tests.shard.reference import VARIABLES, numbers

# Policies with the knobs that change what they remember.
CHOSEN = (
    *(Setting("sync", 3), Setting("sync", 4, {"backup": 1}), Setting("sync", 3, {"weight": "samples"})),
    *(Setting("async", 2), Setting("async", 4)),
    Setting("bounded", 4, {"aggregate": 2, "max_staleness": 1}),
    Setting("bounded", 3, {"on_stale": "downweight", "aggregate": 2, "max_staleness": 0}),
    Setting("bounded", 3, {"on_stale": "compensate", "max_staleness": 0, "compensation": 0.5}),
    Setting("bounded", 4, {"on_stale": "block", "max_staleness": 1}),
    Setting("bounded", 3, {"on_stale": "block", "aggregate": 3, "max_staleness": 0}),
    *(Setting("ssp", 3, {"slack": 0}), Setting("ssp", 4, {"slack": 2})),
    *(Setting("k-sync", 3), Setting("k-sync", 3, {"late": "drop"})),
    *(Setting("k-batch-sync", 3), Setting("rennala", 3, {"aggregate": 4})),
    *(Setting("k-async", 3), Setting("k-batch-async", 3, {"aggregate": 3})),
    *(Setting("softsync", 4, {"n": 2}), Setting("fedbuff", 3), Setting("fedbuff", 3, {"norm": "sum"})),
    *(Setting("delay-adaptive", 3, {"concurrency": 1}),),
    *(Setting("ringmaster", 3, {"threshold": 2}), Setting("ringmaster", 3, {"threshold": 2, "stops": True})),
    Setting("dssp", 3, {"lower": 0, "upper": 3}),
    Setting("dssp", 3, {"lower": 1, "upper": 2}),
    *(Setting("dc-asgd", 3, {"compensation": 0.5}), Setting("dc-asgd-a", 3), Setting("gap-aware", 3)),
    *(Setting("median", 3), Setting("trimmed-mean", 3), Setting("krum", 4, {"select": 2})),
    *(Setting("dana-slim", 3), Setting("local-sgd", 3), Setting("diloco", 3)),
    *(Setting("local-async", 3), Setting("easgd", 3)),
)

# Every built-in policy; at its defaults where nothing is chosen above.
SETTINGS = (*CHOSEN, *(Setting(name) for name in names() if name not in {each.policy for each in CHOSEN}))

COSINE = {"schedule": "cosine", "initial_learning_rate": 0.05, "decay_steps": 12}
# Optimizers with the knobs that make them keep more.
_CHOSEN: tuple[Mapping[str, object], ...] = (
    {"name": "sgd", "learning_rate": COSINE},
    {"name": "momentum", "learning_rate": 0.05},
    {"name": "nesterov", "learning_rate": COSINE},
    {"name": "delayed-nesterov", "learning_rate": 0.05, "period": 3, "spread": 0.5},
    {"name": "adam", "amsgrad": True},
    {"name": "adamw", "learning_rate": COSINE, "exclude_from_weight_decay": ["bias"]},
    {"name": "rmsprop", "momentum": 0.5, "centered": True},
)
# Every optimizer; at its defaults where nothing is chosen above.
OPTIMIZERS = (
    *_CHOSEN,
    *({"name": name} for name in optimizer_names() if name not in {each["name"] for each in _CHOSEN}),
)


class SavedServers(StagedShard):
    """Shards with real optimizers and payloads of their own for each ticket; saved and restored as a whole."""

    def __init__(
        self, setting: Setting, optimizer: Mapping[str, object], servers: int, *, seed: int, staging: int
    ):
        self.seed, self.staging, self.workers = seed, staging, setting.workers
        self.config, self.servers = optimizer, servers
        self.tensors: TensorParts = build(setting.policy, setting.knobs, setting.workers, servers).tensors
        self.shards = self._made()
        self._folded: set[int] = set()

    def _made(self) -> list[Shard]:
        """New ones."""
        self.plan = make_plan(VARIABLES, self.servers)
        optimizer, tensors, versions = build_optimizer(self.config), self.tensors, 2 * self.workers + 2
        made = [
            Shard(self.plan, server, optimizer, versions=versions, staging=self.staging, tensors=tensors)
            for server in range(self.servers)
        ]
        # The one that `somebody_can_move` asks.
        self._shard = made[0]
        return made

    def push(self, ticket: int) -> bool:
        if any(s.refusal(ticket) is not None for s in self.shards):
            return True
        if not all(s.staging.admits(ticket) for s in self.shards):
            return False
        self._stage(ticket, self.shards)
        return True

    def _stage(self, ticket: int, shards: Sequence[Shard]) -> None:
        flats = self.plan.scatter(numbers(self.seed * 1000 + ticket))
        for shard in shards:
            slot = shard.begin(ticket)
            slot.values[...] = flats[shard.layout.server]
            assert shard.staging.finish(slot)

    def execute(self, entry: entries.Entry) -> None:
        order = entry.order(self._folded)
        for shard in self.shards:
            shard.execute(order)
        if isinstance(entry, entries.Grant):
            self._begin(entry.ticket)

    def _begin(self, ticket: int) -> None:
        """Some servers are read at once, others never; some have a payload long before the commit."""
        dice = random.Random(self.seed * 1000 + ticket)
        for shard in self.shards:
            if dice.random() < 0.5:
                shard.holds.has_read(ticket)
            if self.staging < 64 and dice.random() < 0.3 and shard.staging.admits(ticket):
                self._stage(ticket, [shard])

    # State

    def states(self) -> list[ShardState]:
        """Through the text of a file, but for the arrays."""
        found = []
        for shard in self.shards:
            state = shard.state()
            facts = json.loads(json.dumps(state.to_json(), allow_nan=False))
            found.append(ShardState.from_json(facts, dict(state.arrays)))
        return found

    def restart(self, folded: Sequence[int], servers: int) -> None:
        """All processes are new ones, perhaps more or fewer."""
        states, before = self.states(), self.plan
        for shard in self.shards:
            for values in shard.arena.arrays:
                values.fill(np.nan)
        self.servers = servers
        self.shards = self._made()
        if len(states) != servers:
            states = reshard(states, before, self.plan)
        for shard, state in zip(self.shards, states, strict=True):
            shard.restore(state)
        self._folded = set(folded)

    def whole(self) -> dict[str, bytes]:
        """Every array as one server would hold it, but for payloads and versions that not all have."""
        (state,) = reshard(self.states(), self.plan, make_plan(VARIABLES, 1))
        kinds = ("update/", "slot/", "memory/", "constant/", f"version/{state.facts.version}")
        return {name: values.tobytes() for name, values in state.arrays.items() if name.startswith(kinds)}


class Restarted(GuardedHarness):
    """Servers and coordinator are saved and restored between two acts now and then."""

    servers: SavedServers

    def __init__(self, setting: Setting, seed: int, servers: SavedServers, *, chance: float, resize: bool):
        self.setting, self._chance, self._resize = setting, chance, resize
        self._dice, self.restarts = random.Random(f"{setting} {seed}"), 0
        super().__init__(setting.case)
        # It has executed nothing but the job's first entry, which is no order.
        self.servers = servers

    def plays(self, line: str) -> bool:
        could = super().plays(line)
        if self._dice.random() < self._chance:
            self.restarts += 1
            self._restart()
        return could

    def _restart(self) -> None:
        self.copy_takes_over()
        servers = self._dice.randint(1, 3) if self._resize else self.servers.servers
        self.servers.restart(tuple(self.coordinator.state.folded), servers)


@dataclass
class Report:
    """How many of what were played."""

    schedules: Counter[str] = field(default_factory=Counter)
    optimizers: Counter[str] = field(default_factory=Counter)
    combinations: set[tuple[str, str]] = field(default_factory=set)
    restarts: int = 0
    resized: int = 0
    entries: int = 0
    versions: int = 0
    kinds: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.schedules.total()} schedules ({min(self.schedules.values())} or more for each of "
            f"{len(self.schedules)} policies, {min(self.optimizers.values())} or more for each of "
            f"{len(self.optimizers)} optimizers, {len(self.combinations)} pairs of them), {self.restarts} restores "
            f"({self.resized} schedules with other numbers of servers), {self.entries} entries, "
            f"{self.versions} versions"
        )


def choices(setting: Setting, seed: int) -> Iterator[tuple[Mapping[str, object], int, bool]]:
    """Optimizer, servers, and whether their number changes: what this policy can work with."""
    dice = random.Random(f"{setting} {seed} servers")
    while True:
        optimizer = dice.choice(OPTIMIZERS)
        # They see whole rows, and whole variables, or nothing.
        alone = setting.policy == "krum" or build_optimizer(optimizer).whole
        servers, resize = (1 if alone else dice.randint(1, 3)), not alone and dice.random() < 0.3
        yield optimizer, servers, resize


def play(setting: Setting, seed: int, report: Report) -> None:
    """One schedule twice: left alone, and restarted. Raises AssertionError at the first difference."""
    for optimizer, servers, resize in choices(setting, seed):
        staging = 64 if resize else 1 + seed % 3

        def stores(
            optimizer: Mapping[str, object] = optimizer, servers: int = servers, staging: int = staging
        ) -> SavedServers:
            return SavedServers(setting, optimizer, servers, seed=seed, staging=staging)

        try:
            alone = Restarted(setting, seed, stores(), chance=0.0, resize=False)
        except OptimizerError:
            continue  # velocities per worker and an aggregator do not go together
        restarted = Restarted(setting, seed, stores(), chance=0.1, resize=resize)
        for job in (alone, restarted):
            setting.play(seed, 30 + seed % 40, job=job, batches=9, ahead=seed % 2 == 1)
        assert restarted.lines() == alone.lines()
        assert restarted.coordinator.saved() == alone.coordinator.saved()
        assert restarted.servers.whole() == alone.servers.whole()
        name = str(optimizer["name"])
        report.schedules[setting.policy] += 1
        report.optimizers[name] += 1
        report.combinations.add((setting.policy, name))
        report.restarts += restarted.restarts
        report.resized += resize
        report.entries += len(alone.log)
        report.versions += alone.version
        report.kinds |= set(alone.kinds)
        return


def run(schedules: int, seed: int = 0) -> Report:
    """So many schedules for each built-in policy; a failure names the setting and the seed."""
    report = Report()
    by_policy: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        by_policy.setdefault(setting.policy, []).append(setting)
    for settings in by_policy.values():
        for number in range(seed, seed + schedules):
            play(settings[number % len(settings)], number, report)
    return report
