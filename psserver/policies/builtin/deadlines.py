"""Updates that stop waiting: a deadline, or the number of workers that gains most per time."""

from dataclasses import dataclass, replace
from typing import ClassVar

from psserver.policies.builtin.arrivals import FedBuff
from psserver.policies.builtin.spec import Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.parts.deadlines import Deadline, DeadlineRule, Grace, OwnPace
from psserver.policies.parts.gates import WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import CancelStale, Everyone, GainPerTime
from pswire.domains import named
from pswire.knobs import integer, number, word


@dataclass(frozen=True, slots=True)
class DeadlineSync(PolicySpec):
    """A barrier with a deadline: an update is the mean of the fresh gradients that are in time.

    The deadline is, by `rule`: "grace", `grace` seconds after the first commit; "pace", when each missing worker is
    late by its own mean and deviation. Late workers are cancelled and start again. An update needs the share `share`
    of the workers; deadlines cancel at most the share `budget` of all work; a worker that has missed `patience`
    updates in a row is waited for.
    """

    name: ClassVar[str] = "deadline-sync"
    use_when: ClassVar[str] = (
        "sync suits you, but a worker stalls now and then; no worker may be left out for long, nor much work be wasted."
    )
    guarantee: ClassVar[str] = (
        "staleness 0; every update has at least the share `share` of the workers; at most the share `budget` of all "
        "tickets, and one per worker, is cancelled; no worker misses more than `patience` updates in a row"
    )
    source: ClassVar[str] = (
        "deadline, least share: Bonawitz et al. 2019, Towards Federated Learning at Scale, section 2.2; own pace: "
        "RFC 6298; the other limits are ours"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum; two numbers per worker",
        "one addition",
        "an update takes until its deadline at most; the work of late workers",
    )
    label: ClassVar[str] = "{rule}"

    rule: str = word("grace", "what the deadline is made of", ("grace", "pace"))
    grace: float = number(1.0, "seconds after the first commit, by rule = grace", at_least=0.001)
    least: float = number(0.0, "seconds of a deadline by pace at least", at_least=0)
    most: float = number(60.0, "seconds of a deadline by pace at most", at_least=named("least"))
    share: float = number(0.5, "least share of the workers in an update", at_least=0, at_most=1)
    budget: float = number(
        0.5, "share of all tickets that deadlines may cancel; 1: no limit", at_least=0, at_most=1
    )
    patience: int = integer(4, "updates in a row that a worker may miss; 0: no limit", at_least=0)

    def compose(self, workers: int) -> Composition:
        rule: DeadlineRule = Grace(self.grace) if self.rule == "grace" else OwnPace(self.least, self.most)
        limits = Deadline(rule, self.share, self.budget, workers, self.patience)
        return Composition(
            WaitForUpdate(), Everyone(workers), DropStale(0), cancel=CancelStale(), deadline=limits
        )

    def facts(self, workers: int) -> Facts:
        return Facts(distinct=True, max_staleness=0, limit="0", cancels=True)


@dataclass(frozen=True, slots=True)
class Dbw(PolicySpec):
    """Every update is the mean of the first k workers' gradients, with the k that gains most per time.

    The gain of k gradients is k / (k + `noise`), their time the usual one from the start of a round to the k-th commit.
    Late workers are cancelled and start again. At times an update waits for all, to learn how long that takes; this
    costs a twentieth of the time at most.
    """

    name: ClassVar[str] = "dbw"
    use_when: ClassVar[str] = (
        "k-sync suits you, but you do not know which number of workers is right, or it changes."
    )
    guarantee: ClassVar[str] = "staleness 0; the contributions of an update are of different workers"
    source: ClassVar[str] = (
        "Xu, Neglia and Sebastianelli 2020, Dynamic Backup Workers for Parallel Machine Learning; the gain by the "
        "noise scale of McCandlish et al. 2018 in place of their estimate"
    )
    cost: ClassVar[Cost] = Cost(
        "one sum; a time per worker",
        "one addition",
        "the work of late workers; a twentieth of the time to learn what waiting for all takes",
    )

    noise: float = number(
        4.0,
        "gradient noise scale, in contributions: the number of gradients from which on more hardly help",
        at_least=0,
    )

    def compose(self, workers: int) -> Composition:
        return Composition(WaitForUpdate(), GainPerTime(self.noise), DropStale(0), cancel=CancelStale())

    def facts(self, workers: int) -> Facts:
        return Facts(distinct=True, max_staleness=0, limit="0", cancels=True)


@dataclass(frozen=True, slots=True)
class FedBuffTimeout(FedBuff):
    """Like fedbuff, but an update waits at most `timeout` seconds after its first gradient for the others.

    An update of fewer than `aggregate` gradients is their mean, or sum, alike.
    """

    name: ClassVar[str] = "fedbuff-timeout"
    use_when: ClassVar[str] = (
        "fedbuff suits you, but gradients come so rarely at times that those in the buffer grow old."
    )
    guarantee: ClassVar[str] = (
        "no waiting; no gradient is in the buffer for longer than `timeout`; at most `aggregate` per update; nothing "
        "is dropped"
    )

    timeout: float = number(1.0, "seconds after the first gradient of an update", at_least=0.001)

    def compose(self, workers: int) -> Composition:
        limits = Deadline(Grace(self.timeout), share=0.0)
        return replace(FedBuff.compose(self, workers), deadline=limits)

    def facts(self, workers: int) -> Facts:
        return Facts(size=self.aggregate, waits=False)
