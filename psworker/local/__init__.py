"""Local rules: what a worker does between pull and push, as the job's policy asks.

A rule is pure: from the pulled weights, a function that computes gradients, and some batches it makes one payload, and
the memory for the next ticket. Only numpy is needed. Real workers, simulated ones and replay run this very code, so
they agree to the bit.

    rule    the interfaces: what computes gradients, what a rule is; the plain rule: one gradient
    rules   local SGD, DiLoCo, EASGD, DANA-Slim; from a name and numbers to a rule
    inner   the optimizers that they take steps with: SGD, AdamW
    work    one worker's rule with its memory, and the batches of each ticket
"""

from psworker.local.rule import (
    Gradient,
    ReadRows,
    Result,
    RowTrainer,
    Trainer,
    WorkerRule,
    evaluated,
    gradient_of,
    tables_of,
)
from psworker.local.rules import PLAIN, LocalRuleError, build
from psworker.local.work import NONFINITE_LIMIT, LocalWork, ReadAhead, TicketBatches, by_ticket

__all__ = [
    "NONFINITE_LIMIT",
    "PLAIN",
    "Gradient",
    "LocalRuleError",
    "LocalWork",
    "ReadAhead",
    "ReadRows",
    "Result",
    "RowTrainer",
    "WorkerRule",
    "TicketBatches",
    "Trainer",
    "build",
    "by_ticket",
    "evaluated",
    "gradient_of",
    "tables_of",
]
