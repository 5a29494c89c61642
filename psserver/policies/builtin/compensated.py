"""Asynchronous updates whose compensator learns the usual size of a step."""

from dataclasses import dataclass
from typing import ClassVar

from psserver.policies.builtin.spec import Cost, Facts, PolicySpec
from psserver.policies.composition import Composition
from psserver.policies.declarations import TensorParts
from psserver.policies.parts.gates import Immediate
from psserver.policies.parts.staleness_rules import Compensate
from psserver.policies.parts.triggers import Count
from pswire.knobs import number

BASES = "every version that unfinished work started from: at most one per worker"


@dataclass(frozen=True, slots=True)
class DcAsgdA(PolicySpec):
    """Every gradient is applied as it comes, corrected for how the weights have moved, by its own usual size.

    g' = g + lambda_t g*g*(x_now - x_base), with lambda_t = compensation /
    sqrt(m + epsilon) and m = decay m + (1 - decay) g*g, weight by weight: where
    gradients are small, `dc-asgd` corrects hardly anything, and this as much
    as elsewhere. One m for all workers, and every gradient counts in it.
    """

    name: ClassVar[str] = "dc-asgd-a"
    use_when: ClassVar[str] = (
        "dc-asgd corrects too little, because gradients are small or differ in size from layer to layer."
    )
    guarantee: ClassVar[str] = "no waiting; every gradient is compensated with `compensation`; 0 is async"
    source: ClassVar[str] = (
        "DC-ASGD-a: Zheng et al. 2017, Asynchronous SGD with Delay Compensation, section 5 (adaptive lambda)"
    )
    cost: ClassVar[Cost] = Cost(
        f"a mean square per weight; {BASES}",
        "one step of the optimizer, and some ten operations per weight",
        "nothing; with many workers and a large learning rate the correction itself can diverge",
    )

    compensation: float = number(2.0, "lambda_0", at_least=0)
    decay: float = number(0.95, "part of the mean square that is kept per gradient (m)", at_least=0, below=1)
    epsilon: float = number(1e-7, "added to the mean square under the root", above=0)

    def compose(self, workers: int) -> Composition:
        tensors = TensorParts("adaptive-taylor", knobs={"decay": self.decay, "epsilon": self.epsilon})
        return Composition(Immediate(), Count(1), Compensate(-1, self.compensation), tensors=tensors)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)


@dataclass(frozen=True, slots=True)
class GapAware(PolicySpec):
    """Every gradient is applied as it comes, divided weight by weight by how many usual steps it is behind.

    g' = g / (1 + |x_now - x_base| / C), where C is the size of a usual step:
    the largest learning rate so far times (the root of the running mean of
    squared gradients + epsilon). With `momentum` or `nesterov` the mean is over
    the velocity, which is the step. Where the weights have not moved a gradient
    is left as it is, however old.
    """

    name: ClassVar[str] = "gap-aware"
    use_when: ClassVar[str] = (
        "async diverges at a large learning rate, and you do not want to look for a constant such as "
        "that of dc-asgd."
    )
    guarantee: ClassVar[str] = "no waiting; every gradient is compensated; without a gap it is left as it is"
    source: ClassVar[str] = (
        "Gap-Aware: Barkai, Hakimi and Schuster 2020, Gap-Aware Mitigation of Gradient Staleness"
    )
    cost: ClassVar[Cost] = Cost(
        f"a mean square per weight; {BASES}",
        "one step of the optimizer, and some ten operations per weight",
        "small steps get smaller still where many workers move the same weights",
    )

    decay: float = number(0.999, "part of the mean square that is kept per gradient", at_least=0, below=1)
    epsilon: float = number(1e-8, "added to the root of the mean square", above=0)

    def compose(self, workers: int) -> Composition:
        tensors = TensorParts("gap-aware", knobs={"decay": self.decay, "epsilon": self.epsilon})
        return Composition(Immediate(), Count(1), Compensate(-1, 1.0), tensors=tensors)

    def facts(self, workers: int) -> Facts:
        return Facts(size=1, free=1)
