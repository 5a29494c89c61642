"""Controllers: rules that change the policy's knob `aggregate` while the job runs, by what its commits and updates say.

A controller sees losses and norms, never tensors. It proposes; the coordinator carries the change out as it does one of
an operator, and the log has its inputs. Between two decisions are at least `DWELL` updates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Final

from psserver.policies.decisions import PolicyError
from psserver.policies.evidence import Evidence, Losses, Noise
from psserver.policies.policy import Policy
from psserver.policies.succession import successor
from psserver.records import from_plain, to_plain
from pswire.knobs import KnobError, integer, number, read, settings, word
from pswire.nearest import did_you_mean

# The knob that controllers set: the number of contributions of an update.
KNOB: Final = "aggregate"
# The least number of updates between two decisions.
DWELL: Final = 20
# A knob moves only if the wanted value is at least this far away, or a fifth of the present one.
LEAST_MOVE, LEAST_SHARE = 0.6, 0.2
# How the learning rate follows the number of contributions of an update: the exponent of the quotient of the numbers.
RATES: Final[Mapping[str, float]] = {"keep": 0.0, "sqrt": 0.5, "linear": 1.0}
# The greatest noise scale: JSON has no infinity.
MOST_NOISE: Final = 1e9


@dataclass(frozen=True, slots=True)
class WantedKnob:
    """The value of a knob that a controller wants, not rounded, what it follows from, and a sentence for people."""

    value: float
    inputs: Mapping[str, float]
    why: str


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change that a controller proposes. `rate`: factor of the job's learning rate from then on."""

    policy: Policy
    rate: float
    inputs: Mapping[str, float]
    why: str


@dataclass(frozen=True, slots=True)
class ControllerSpec:
    """A named controller: a dataclass whose fields are its knobs and whose docstring is its rule.

    `fewest`: the least number of contributions of an update with which it learns anything. `measures`: shards have to
    measure updates for it.
    """

    name: ClassVar[str] = ""
    use_when: ClassVar[str] = ""
    source: ClassVar[str] = ""
    fewest: ClassVar[int] = 1
    measures: ClassVar[bool] = False

    every: int = integer(DWELL, "updates between two decisions", at_least=DWELL)

    least: int = integer(1, "least contributions per update", at_least=1)
    most: int = integer(0, "most contributions per update; 0: the number of workers", at_least=0)
    rate: str = word(
        "keep",
        "the learning rate: as it is, or times the number of contributions by that at the start, or its square root",
        RATES,
    )

    def limits(self, workers: int) -> tuple[int, int]:
        """Return the least and the greatest value of the knob."""
        return max(self.least, self.fewest), self.most or workers

    def rate_of(self, value: int, began: int) -> float:
        """Return the factor of the learning rate that goes with the value."""
        return float((value / began) ** RATES[self.rate])

    def evidence(self) -> Evidence:
        """Return new, empty evidence of the kind that the rule needs."""
        raise NotImplementedError

    def wanted(self, evidence: Evidence, began: int, workers: int) -> WantedKnob | None:
        """Return what the knob should be; None while that is not known. `began`: its value at the start."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AdaSync(ControllerSpec):
    """K grows as the loss falls: K^2 / (P - K) is that at the start times the quotient of the losses.

    P is the number of workers. A loss is the median over workers of their mean losses since the decision before, so
    that one bad worker steers nothing. `floor` is the least loss that the job can reach: without it K stops early.
    """

    name: ClassVar[str] = "adasync"
    use_when: ClassVar[str] = (
        "small updates are fast at the beginning and too noisy at the end, and you know about how low the loss can get."
    )
    source: ClassVar[str] = (
        "Dutta et al. 2020, Slow and Stale Gradients Can Win the Race (AdaSync); the floor and the median are ours"
    )

    floor: float = number(0.0, "the least loss that the job can reach")

    def evidence(self) -> Evidence:
        return Losses()

    def wanted(self, evidence: Evidence, began: int, workers: int) -> WantedKnob | None:
        assert isinstance(evidence, Losses)
        means = evidence.take()
        if not means:
            return None
        loss = median(means)
        if evidence.first is None:
            evidence.first = loss
        above, now = evidence.first - self.floor, loss - self.floor
        value = float(workers)
        if now > 0 and above > 0:
            value = adasync_k(began, workers, above / now)
        inputs = {"first": evidence.first, "loss": loss, "wanted": value}
        return WantedKnob(value, inputs, f"the loss is {loss:.4g}, and was {evidence.first:.4g}")


def adasync_k(began: int, workers: int, quotient: float) -> float:
    """Return K with ``K**2 / (P - K) = K0**2 / (P - K0) * quotient``. `quotient`: of the first loss and the present."""
    if began >= workers:
        return float(workers)
    right = began * began / (workers - began) * quotient
    # The positive root, in a form that does not cancel for a large right side.
    return 2 * workers / (1 + math.sqrt(1 + 4 * workers / right))


@dataclass(frozen=True, slots=True)
class NoiseScale(ControllerSpec):
    """K is the gradient noise scale: beyond that number of gradients one more hardly makes an update better.

    The scale is sigma^2 / |G|^2, from the norms of contributions and of their mean: no pass over data is needed. Both
    are averaged apart over 100 updates. An update of one gradient says nothing, so K is at least 2.
    """

    name: ClassVar[str] = "noise-scale"
    use_when: ClassVar[str] = "you do not know how many gradients an update should have, and it changes."
    source: ClassVar[str] = (
        "McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.1; batches by it: Pollux, Qiao "
        "et al. 2021"
    )
    fewest: ClassVar[int] = 2
    measures: ClassVar[bool] = True

    def evidence(self) -> Evidence:
        return Noise()

    def wanted(self, evidence: Evidence, began: int, workers: int) -> WantedKnob | None:
        assert isinstance(evidence, Noise)
        found = evidence.means()
        if found is None:
            return None
        variance, square = found
        # An estimate of the square that is not above 0 says that the noise is too large to see the gradient.
        scale = min(max(variance, 0.0) / square, MOST_NOISE) if square > 0 else MOST_NOISE
        inputs = {"variance": variance, "square": square, "wanted": scale}
        return WantedKnob(scale, inputs, f"the gradient noise scale is {scale:.3g}")


CONTROLLERS: Final[Mapping[str, type[ControllerSpec]]] = {spec.name: spec for spec in (AdaSync, NoiseScale)}
"""Every controller by name."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The saved form of a `Controller`. `off`: who has taken the policy in hand; empty while it decides."""

    evidence: dict[str, object]
    next: int
    off: str


class Controller:
    """A controller at work, in a job that begins with `policy`. `off`: why it decides nothing more; empty: it does.

    Raises PolicyError for an unknown name or knob, and if the policy cannot be controlled so.
    """

    def __init__(self, config: Mapping[str, object], policy: Policy, workers: int, servers: int = 1) -> None:
        self.spec = spec = _spec(config, policy)
        if KNOB not in policy.knobs:
            raise PolicyError(f"controller {spec.name} sets {KNOB}, which policy {policy.name} does not have")
        self.began = _size(policy)
        self._workers, self._servers = workers, servers
        self.low, self.high = spec.limits(workers)
        self.evidence = spec.evidence()
        # The version at which it decides next.
        self.next = spec.every
        self.off = ""
        self._check(policy)

    def _check(self, policy: Policy) -> None:
        spec, size = self.spec, self.began
        if size < spec.fewest:
            raise PolicyError(
                f"controller {spec.name} learns from updates of {spec.fewest} contributions or more: expected a policy "
                f"with aggregate of at least {spec.fewest}, got {policy.name} with {size}"
            )
        if spec.measures and policy.tensors.aggregator != "mean":
            raise PolicyError(
                f"controller {spec.name} needs the mean of contributions, and policy {policy.name} takes their "
                f"{policy.tensors.aggregator}"
            )
        if not self.low <= self.began <= self.high:
            raise PolicyError(
                f"controller {spec.name}: expected {KNOB} from {self.low} to {self.high} at the start, as its "
                f"knobs least and most say, got {self.began}"
            )
        for value in {self.low, self.high}:
            self._successor(policy, value)

    @property
    def config(self) -> dict[str, object]:
        """Name and knobs, as the log has them."""
        return {"name": self.spec.name, **settings(self.spec)}

    def describe(self) -> str:
        """Say in a sentence what it does next."""
        if self.off:
            return f"controller {self.spec.name} is off: {self.off} has changed the policy"
        return f"controller {self.spec.name} looks at {KNOB} at version {self.next}"

    def propose(self, version: int, policy: Policy) -> Adjustment | None:
        """Return the change that is due at `version`, if any. Raises PolicyError for a policy without the knob."""
        if self.off or version < self.next:
            return None
        self.next = version + self.spec.every
        wanted = self.spec.wanted(self.evidence, self.began, self._workers)
        if wanted is None:
            return None
        present = _size(policy)
        target = moved(present, wanted.value, self.low, self.high)
        if target == present:
            return None
        why = f"{wanted.why}: {KNOB} {present} becomes {target}"
        rate = self.spec.rate_of(target, self.began)
        return Adjustment(self._successor(policy, target), rate, wanted.inputs, why)

    def _successor(self, policy: Policy, value: int) -> Policy:
        knobs = {**policy.knobs, KNOB: value}
        return successor(policy, policy.name, knobs, self._workers, self._servers)

    def state(self) -> dict[str, object]:
        """Return everything that it remembers, JSON-able."""
        plain: dict[str, object] = to_plain(ControllerState(to_plain(self.evidence), self.next, self.off))
        return plain

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore what `state` returned. Raises StateError, with nothing changed."""
        saved = from_plain(ControllerState, state, "controller")
        self.evidence = from_plain(type(self.evidence), saved.evidence, "controller")
        self.next, self.off = saved.next, saved.off


def moved(present: int, wanted: float, low: int, high: int) -> int:
    """Return the value of a knob that follows `wanted` from `present`, within its limits, and does not flutter."""
    value = min(max(wanted, low), high)
    near = abs(value - present) < max(LEAST_MOVE, LEAST_SHARE * present)
    return present if near and low < value < high else math.floor(value + 0.5)


def _spec(config: Mapping[str, object], policy: Policy) -> ControllerSpec:
    name, knobs = str(config.get("name", "")), {key: config[key] for key in config if key != "name"}
    if name not in CONTROLLERS:
        raise PolicyError(f"unknown controller {name!r}{did_you_mean(name, CONTROLLERS)}")
    try:
        return read(CONTROLLERS[name], knobs, f"controller {name}")
    except KnobError as error:
        raise PolicyError(str(error)) from error


def _size(policy: Policy) -> int:
    value = policy.knobs.get(KNOB)
    if not isinstance(value, int):
        raise PolicyError(f"policy {policy.name} has no knob {KNOB}")
    return value
