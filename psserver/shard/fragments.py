"""Updates of one group of rows after the other: Streaming DiLoCo's fragments on a shard (`pswire.model.groups`)."""

from dataclasses import dataclass

from psserver.optimizers import Optimizer, OptimizerError
from psserver.optimizers.schedules import Constant
from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import Plan, PlanError


@dataclass(frozen=True, slots=True)
class GroupTurn:
    """A server's part of a group, and the optimizer bound to it."""

    part: GroupPart
    optimizer: Optimizer


def check_fragments(
    count: int,
    optimizer: Optimizer | None,
    plan: Plan | None = None,
    *,
    replicas: int = 1,
) -> None:
    """Raise OptimizerError for what does not go together with several fragments. None: not known yet, or none."""
    if count == 1:
        return
    why = ""
    if plan is not None:
        try:
            Groups(plan, count)
        except PlanError as error:
            raise OptimizerError(f"policy.{error}") from error
    if replicas > 1:
        why = "a server with a copy is told whole payloads: expected cluster.replicas = 1"
    elif optimizer is None:
        return
    elif optimizer.whole:
        why = f"optimizer {optimizer.name!r} needs whole variables, and groups divide them: expected nesterov or sgd"
    elif not isinstance(optimizer.schedule, Constant):
        why = (
            "a schedule counts versions, and each group has its own count: expected a number as learning_rate"
        )
    if why:
        raise OptimizerError(f"policy.fragments: {why}, or fragments = 1")
