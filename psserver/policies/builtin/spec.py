"""Description of a policy in one place: rule, knobs, guarantee, paper, cost and checkable facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from psserver.policies.composition import Composition
from pswire.domains import named

WORKERS: Final = named("workers")
"""The number of workers that a job starts with, as a bound of a knob."""

# For a policy under which a worker contributes at most once to an update: K above the number of workers never fires.
ONE_EACH: Final = "one contribution per worker and update; lower it or add workers"


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost beyond the model itself: memory on servers, work per push, and wasted work."""

    stores: str
    work: str
    waste: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The promises that a policy with given knobs makes of every update, in numbers.

    `ps-lab check` and `verify-policy` hold the policy's decisions to them, and the laws of `ps-lab predict` use them.

    `size`: most contributions of an update; None: no limit.
    `waits`: an update has fewer than `size` only when no other worker could add one.
    `fewest`: least contributions of an update; fewer are dropped as "too few".
    `distinct`: the contributions of an update are of different workers.
    `max_staleness`: of an applied contribution, in versions; None: no bound. `limit`: the same in terms of knobs.
    `drops`: a contribution beyond `max_staleness` is dropped as "stale"; if False, nothing is dropped as "stale".
    `cancels`: an update may cancel tickets that were granted before it; if False, each is applied or dropped.
    `max_lead`: clocks between a worker that is granted a ticket and the slowest; None: no bound.
    `free`: workers without an open ticket when an update is made, where that is always the same number, every
    update has `size` contributions, and nothing is dropped. Then mean staleness is (workers - free) / size
    (conservation of staleness). None: there is no such law.
    `batches`: batches of one ticket.
    `by_samples`: contributions are weighted by their samples; an update without samples is dropped as "no samples".
    """

    size: int | None = None
    waits: bool = True
    fewest: int = 1
    distinct: bool = False
    max_staleness: int | None = None
    limit: str = ""
    drops: bool = False
    cancels: bool = False
    max_lead: int | None = None
    free: int | None = None
    batches: int = 1
    by_samples: bool = False


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A named policy: a dataclass whose fields are its knobs (`pswire.knobs`) and whose docstring is its rule.

    The first line of the docstring is the rule in one sentence. Every subclass in a module of
    `psserver.policies.builtin` is a built-in policy under its `name`; one of your own is loaded as "module:Class".

    `use_when`: completes the sentence "use it when ...". `guarantee`: what always holds, in words. `source`: the paper.
    `optimizer`: keys of [optimizer] that the rule is meant for; empty: any. `label`: template that tells runs of this
    policy apart, with knobs in braces; "": the knobs that differ from their defaults.
    """

    name: ClassVar[str] = ""
    use_when: ClassVar[str] = ""
    guarantee: ClassVar[str] = ""
    source: ClassVar[str] = ""
    cost: ClassVar[Cost] = Cost("", "", "")
    optimizer: ClassVar[Mapping[str, object]] = {}
    label: ClassVar[str] = ""

    def compose(self, workers: int) -> Composition:
        """Return the parts, for a job that starts with `workers` workers. Knobs are within their ranges."""
        raise NotImplementedError(f"{type(self).__name__}.compose(workers) is missing: return a Composition")

    def facts(self, workers: int) -> Facts:
        """Return what the policy promises with these knobs, for a job that starts with `workers` workers."""
        return Facts()
