"""Decisions of a policy, which the coordinator numbers and the shards execute in order; and its one exception."""

from pswire.values import value


class PolicyError(ValueError):
    """A policy, one of its knobs or one of its decisions is not acceptable.

    The text says what was expected, what was found and, where that is not obvious, what to do.
    """


@value
class Grant:
    """`worker` may start its requested `ticket` from the current version.

    `turn`, when given, is the contribution's place in the summation order of
    its round; shards use it to admit payloads so that memory stays bounded.
    """

    worker: str
    ticket: int
    turn: int | None = None


@value
class Fold:
    """Sum a committed ticket now: its weight is final except for the scale that the round has in common.

    The shards compute ``sum += factor * g`` in the order of these decisions.
    `compensation` is the strength by which the policy's compensator corrects g
    first (DC-ASGD's lambda); 0 is none.
    """

    ticket: int
    factor: float = 1.0
    compensation: float = 0.0


@value
class Part:
    """One contribution of an update. Its final weight is ``factor * Apply.scale``."""

    ticket: int
    factor: float = 1.0
    compensation: float = 0.0


@value
class Apply:
    """Make the next version from `parts`, in this order.

    ``g = scale * sum(factor_i * g_i)``; the optimizer then steps with its
    scheduled learning rate times `lr_scale`. Parts that were folded before
    must be listed in the order of their folds, ahead of any that were not.
    """

    parts: tuple[Part, ...]
    scale: float = 1.0
    lr_scale: float = 1.0


@value
class Drop:
    """A committed ticket will never be applied."""

    ticket: int
    reason: str


@value
class Cancel:
    """An open ticket is void; its worker abandons it and asks again."""

    ticket: int
    reason: str


@value
class SetTimer:
    """Send the event `Timer` with this tag at time `at`, in whole microseconds of the job (see `microseconds`).

    It must be at least 1,000 after the present event. A timer that is set with the same tag is void. At most 64 timers
    are set at once. Job time stands still while the job recovers or has no worker: timers are then due later.
    """

    tag: str
    at: int


@value
class ClearTimer:
    """Remove a timer. Does nothing if no timer has this tag."""

    tag: str


@value
class Stop:
    """The job is over."""

    reason: str


Decision = Grant | Fold | Apply | Drop | Cancel | SetTimer | ClearTimer | Stop
"""Any decision."""
