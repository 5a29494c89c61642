"""What a policy may decide. The coordinator numbers decisions, the shards execute them in order."""

from pswire.values import value


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
    """The weight of a committed ticket is final but for the round's common scale: sum it now.

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
class Stop:
    """The job is over."""

    reason: str


Decision = Grant | Fold | Apply | Drop | Cancel | Stop
"""What a policy may answer."""
