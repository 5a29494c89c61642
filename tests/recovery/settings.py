"""Which jobs the schedules try: every built-in policy, in every setting of its knobs that other schedules know."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from psserver.policies import PolicyError, build
from tests.coordinator.settings import SETTINGS, Setting
from tests.policies.settings import OTHERS, SAME

# Of a job, over all of its workers: enough for some updates behind some checkpoints.
BATCHES = 12

POLICIES: Mapping[str, tuple[Setting, ...]] = {
    **SETTINGS,
    **OTHERS,
    **{name: (Setting(name, 2), Setting(name, 3)) for name in SAME},
}
"""Policy -> its settings."""


@dataclass(frozen=True)
class Job:
    """`servers`: at the start. `disk`: checkpoints are files on a disk that may fail, else they are kept whole."""

    setting: Setting
    servers: int
    every: int
    disk: bool

    @property
    def batches(self) -> int:
        """Of each worker."""
        return max(2, BATCHES // self.setting.workers)

    def __str__(self) -> str:
        where = "on a disk" if self.disk else "in memory"
        return f"{self.setting}, servers={self.servers}, a checkpoint every {self.every} versions {where}"


def job_of(seed: int) -> Job:
    """The job of that seed: consecutive seeds take all policies in turn, one in four has a disk."""
    names, dice = list(POLICIES), Random(seed)
    setting = dice.choice(POLICIES[names[seed % len(names)]])
    servers = dice.randint(1, 3)
    return Job(
        setting, servers if may_have(setting, servers) else 1, dice.randint(1, 3), dice.random() < 0.25
    )


def may_have(setting: Setting, servers: int) -> bool:
    """The policy takes so many servers."""
    try:
        build(setting.policy, setting.knobs, setting.workers).tensors.check_servers(servers)
    except PolicyError:
        return False
    return True
