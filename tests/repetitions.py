"""How often a test repeats what it draws at random, and from which seed on.

`scripts/test` repeats as often as finds most faults in minutes; `scripts/test --fast` a few times;
`scripts/soak` many times, from a new seed each round, which it prints. A failure names its seed.
"""

import os
from collections.abc import Iterator
from typing import Any, TypeVar

Case = TypeVar("Case")
EFFORTS = ("fast", "usual", "soak")

EFFORT = os.environ.get("PARAMSERVER_EFFORT", "usual")
if EFFORT not in EFFORTS:
    raise ValueError(f"PARAMSERVER_EFFORT: expected one of {', '.join(EFFORTS)}, got {EFFORT!r}")
SOAK = EFFORT == "soak"
# Of the first repetition.
FIRST_SEED = int(os.environ.get("PARAMSERVER_SEED", "0"))


def repetitions(usual: int, *, soak: int, fast: int | None = None) -> int:
    """How often, under the effort that was asked for. `fast`: a tenth of the usual number where not given."""
    return {"fast": max(1, usual // 10) if fast is None else fast, "usual": usual, "soak": soak}[EFFORT]


def seeds(usual: int, *, soak: int, fast: int | None = None) -> Iterator[int]:
    """As many consecutive seeds as `repetitions`."""
    return iter(range(FIRST_SEED, FIRST_SEED + repetitions(usual, soak=soak, fast=fast)))


def usually(cases: list[Case], soak: list[Case]) -> list[Case]:
    """Parameters of a test: `cases`, and in a soak also those of `soak` that are not among them."""
    known = [_values(case) for case in cases]
    return cases + [case for case in soak if _values(case) not in known] if SOAK else cases


def _values(case: Any) -> tuple[Any, ...]:
    """Without the marks that `pytest.param` gives to a case."""
    found = getattr(case, "values", case)
    return found if isinstance(found, tuple) else (found,)
