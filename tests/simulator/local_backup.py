"""A policy of a user's: local steps at a barrier with one backup worker, whose ticket is cancelled."""

from psserver.policies import LocalRule
from psserver.policies.cancel import Overtaken
from psserver.policies.gates import Flush
from psserver.policies.machine import Composition, Machine
from psserver.policies.staleness import DropStale
from psserver.policies.triggers import Everyone


class LocalBackup(Machine):
    def __init__(self, workers: int, steps: int) -> None:
        rule = LocalRule("local-sgd", {"steps": steps, "learning_rate": 0.1})
        rules = Composition(Flush(), Everyone(workers, 1), DropStale(0), cancel=Overtaken(), local=rule)
        super().__init__("tests.simulator.local_backup:LocalBackup", {"steps": steps}, rules)
