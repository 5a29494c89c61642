"""What a worker does between pull and push: the local rule that the job's policy asks for.

A rule is pure: from the weights that were pulled, a function that computes
gradients and some batches it makes one payload, and what it remembers until
the next ticket. Only numpy is needed. Real workers, simulated ones and replay
run this very code, so they agree to the bit.

    portions    a worker's data in parts of one ticket each
    rule        what a rule is; the plain one: one gradient
    walk        steps of an inner optimizer from some weights
    inner       the inner optimizers: SGD, AdamW
    steps       local SGD, DiLoCo: pull, walk, push how far it led
    elastic     EASGD: walk on, and be drawn to the centre now and then
    slim        DANA-Slim: momentum on the worker
    work        one worker's rule with what it remembers
    registry    from the name and numbers that the servers sent to a rule
"""

from psworker.local.portions import Portions, TicketBatches
from psworker.local.registry import PLAIN, LocalRuleError, build
from psworker.local.rule import Gradient, Result, Rule
from psworker.local.work import LocalWork

__all__ = [
    "PLAIN",
    "Gradient",
    "LocalRuleError",
    "LocalWork",
    "TicketBatches",
    "Portions",
    "Result",
    "Rule",
    "build",
]
