"""From a seed to one round: which policy, servers and transport, and who attacks."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

# Policies with knobs for a few workers, among whom liars come and go. Barriers also with a backup.
POLICIES: Mapping[str, Mapping[str, object]] = {
    "sync": {},
    "async": {},
    "bounded": {"aggregate": 2, "max_staleness": 3},
    "ssp": {"slack": 2},
    "k-sync": {"aggregate": 2},
    "k-async": {"aggregate": 2},
    "median": {},
    "krum": {"byzantine": 0},
    "dssp": {},
    "dc-asgd": {},
    "dc-asgd-a": {},
    "gap-aware": {},
    "softsync": {},
    "fedbuff": {"aggregate": 2},
    "delay-adaptive": {},
    "ringmaster": {},
    "local-sgd": {},
    "easgd": {},
}
# Under these a run of honest workers repeats to the bit, so strangers must not change a bit of it.
REPEATING = ("sync", "median", "krum", "local-sgd")
# These refuse sparse tables, or compute with whole models.
WITHOUT_TABLES = ("median", "krum", "dc-asgd", "dc-asgd-a", "gap-aware", "local-sgd", "easgd")
COMPANY = ("strangers", "members")
TRANSPORTS = ("grpc", "socket", "shared-memory")


@dataclass(frozen=True)
class Scenario:
    """All that is drawn but the messages. `workers`: honest ones; `batches`: of each."""

    seed: int
    policy: str
    company: str
    servers: int
    transport: str
    workers: int = 2
    batches: int = 24
    # The model has sparse tables beside its variables.
    tables: bool = False

    @property
    def knobs(self) -> list[str]:
        """As --set takes them."""
        return [f"policy.{name}={value}" for name, value in POLICIES[self.policy].items()]

    @property
    def honest(self) -> list[str]:
        return [f"honest-{index}" for index in range(self.workers)]

    @property
    def spoils(self) -> bool:
        """Members may make the model useless: no policy holds them back."""
        return self.company == "members" and self.policy not in ("median", "krum")

    @property
    def repeats(self) -> bool:
        return self.company == "strangers" and self.policy in REPEATING

    def __str__(self) -> str:
        servers = "1 server" if self.servers == 1 else f"{self.servers} servers"
        tables = ", tables" if self.tables else ""
        return f"{self.policy}, {self.company}, {servers}, {self.transport}{tables}"


def scenario(
    seed: int, policy: str | None = None, company: str | None = None, tables: bool | None = None
) -> Scenario:
    """The round of this seed; `policy`, `company` and `tables` where they are not to be drawn."""
    chance = random.Random(seed)
    name = chance.choice(list(POLICIES))
    who = chance.choice(COMPANY)
    servers, transport = chance.choice((1, 1, 2, 3)), chance.choice(TRANSPORTS)
    policy = policy or name
    if policy == "krum":
        # It compares whole gradients.
        servers = 1
    workers = 3 if policy in ("median", "krum") else 2
    drawn = chance.random() < 0.4 if tables is None else tables
    with_tables = drawn and policy not in WITHOUT_TABLES
    return Scenario(seed, policy, company or who, servers, transport, workers, tables=with_tables)
