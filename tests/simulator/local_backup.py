"""A policy of a user's: local steps at a barrier with one backup worker, whose ticket is cancelled."""

from psserver.policies import (
    CancelStale,
    ComposedPolicy,
    Composition,
    DropStale,
    Everyone,
    LocalRule,
    WaitForUpdate,
)


class LocalBackup(ComposedPolicy):
    def __init__(self, workers: int, steps: int) -> None:
        rule = LocalRule("local-sgd", {"steps": steps, "learning_rate": 0.1})
        rules = Composition(
            WaitForUpdate(), Everyone(workers, 1), DropStale(0), cancel=CancelStale(), local=rule
        )
        super().__init__(rules)
