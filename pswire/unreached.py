"""Trained variables that only some workers reach: what is said about them while a job runs, and at its end."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

# The most variables, and the most groups of workers, that a sentence names.
NAMED: Final = 4
MEANING: Final = (
    "the servers divide updates and momentum of such a variable by the samples of all workers all the same, and weight "
    "decay shrinks it with every update"
)


def unreached_here(worker: str, names: Sequence[str], contributions: int) -> str:
    """Return the warning about variables whose gradients were zero in each of a worker's first contributions."""
    return (
        f"the first {contributions} contributions of {worker} did not reach {_several(names)}: their gradients were "
        f"zero each time. If other workers reach them, {MEANING}"
    )


def unreached(names: Sequence[str], found: Mapping[str, Collection[int]], workers: Collection[str]) -> str:
    """Return a sentence about variables that some or all workers did not reach; "" if there are none.

    `names`: of all variables. `found`: by worker, the numbers of those that it did not reach. `workers`: all that have
    contributed.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for number, name in enumerate(names):
        if without := tuple(sorted(worker for worker, numbers in found.items() if number in numbers)):
            groups.setdefault(without, []).append(name)
    said = [
        f"no worker reached {_several(group)}"
        if set(workers) <= set(without)
        else f"{_several(without, 'worker')} did not reach {_several(group)}"
        for without, group in list(groups.items())[:NAMED]
    ]
    if not said:
        return ""
    more = ["and so on"] if len(groups) > NAMED else []
    return f"{'; '.join([*said, *more])} ({MEANING})"


def _several(names: Sequence[str], kind: str = "variable") -> str:
    more = len(names) - NAMED
    shown = [*names[:NAMED], *([f"{more} more {kind}{'s' if more > 1 else ''}"] if more > 0 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
