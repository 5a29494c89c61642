"""What a worker does between pull and push: the local rule that the job's policy asks for.

A rule is pure: from the weights that were pulled, a function that computes
gradients and some batches it makes one payload, and what it remembers until
the next ticket. Only numpy is needed. Real workers, simulated ones and replay
run this very code, so they agree to the bit.

    trainer         what computes gradients
    ticket_batches  a worker's data, split into the batches of one ticket each
    rule            what a rule is; the plain one: one gradient
    inner           the inner optimizers: SGD, AdamW
    inner_steps     their steps from some weights on
    local_steps     local SGD, DiLoCo: pull, take steps, push how far they led
    elastic         EASGD: weights of one's own, drawn to the centre now and then
    dana_slim       DANA-Slim: momentum on the worker
    work            one worker's rule with what it remembers
    registry        from the name and numbers that the servers sent to a rule
"""

from psworker.local.registry import PLAIN, LocalRuleError, build
from psworker.local.rule import Rule
from psworker.local.ticket_batches import ReadAhead, TicketBatches, by_ticket
from psworker.local.trainer import Gradient, Result, Trainer
from psworker.local.work import NONFINITE_LIMIT, LocalWork

__all__ = [
    "NONFINITE_LIMIT",
    "PLAIN",
    "Gradient",
    "LocalRuleError",
    "LocalWork",
    "ReadAhead",
    "Result",
    "Rule",
    "TicketBatches",
    "Trainer",
    "build",
    "by_ticket",
]
