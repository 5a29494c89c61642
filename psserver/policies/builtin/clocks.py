"""Clocks: no worker runs far ahead of the slowest."""

from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.parts.dssp import DynamicSlack
from psserver.policies.parts.gates import Slack
from psserver.policies.parts.staleness_rules import KeepAll
from psserver.policies.parts.triggers import Count
from pswire.domains import named
from pswire.knobs import integer


@dataclass(frozen=True, slots=True)
class Ssp(PolicySpec):
    """Gradients are applied as they come; nobody runs more than `slack` clocks ahead of the slowest.

    A worker's clock is the number of its commits; it keeps it when it, or a
    server, restarts. A new worker starts at the clock of the slowest. Slack 0
    is a barrier in clocks, with one update per gradient.
    """

    name: ClassVar[str] = "ssp"
    use_when: ClassVar[str] = (
        "every worker stalls now and then, but none is always slow: the others go on meanwhile, up to "
        "`slack` steps."
    )
    guarantee: ClassVar[str] = "executing gap <= slack, in clocks (version staleness has no such bound)"
    source: ClassVar[str] = (
        "Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel PS"
    )
    cost: ClassVar[Cost] = Cost(
        "one clock per worker",
        "one step of the optimizer",
        "fast workers wait: jitter is evened out, a worker that is always slow still sets the pace of all",
    )
    label: ClassVar[str] = "slack {slack}"

    slack: int = integer(3, "clocks that a worker may be ahead of the slowest", at_least=0)

    def compose(self, workers: int) -> Composition:
        return Composition(gate=Slack(self.slack), trigger=Count(1), staleness=KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, max_lead=self.slack)


@dataclass(frozen=True, slots=True)
class Dssp(PolicySpec):
    """SSP whose slack moves between `lower` and `upper`: the fastest may run on when that saves it waiting.

    When the fastest worker would block, the times of the last two commits of it
    and of the slowest predict how many further clocks minimise its wait. The
    printed algorithm asks again whenever these are used up and so has no upper
    bound at all; here `upper` is enforced.
    """

    name: ClassVar[str] = "dssp"
    use_when: ClassVar[str] = "ssp suits you, but you do not know which slack is right."
    guarantee: ClassVar[str] = "executing gap <= upper, in clocks"
    source: ClassVar[str] = (
        "Zhao et al. 2019, Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning, "
        "algorithms 1 and 2, with a clamp of ours"
    )
    cost: ClassVar[Cost] = Cost(
        "a clock and two times per worker",
        "one step of the optimizer; a look at all workers when the fastest would block",
        "as ssp, less when some workers are steadily faster",
    )

    lower: int = integer(3, "clocks ahead of the slowest that are always allowed", at_least=0)
    upper: int = integer(15, "clocks ahead of the slowest that are never exceeded", at_least=named("lower"))

    def compose(self, workers: int) -> Composition:
        return Composition(DynamicSlack(self.lower, self.upper), Count(1), KeepAll())

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, max_lead=self.upper)
