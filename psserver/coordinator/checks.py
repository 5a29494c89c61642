"""What the coordinator demands of a policy's decisions. Each check raises PolicyError with what was expected."""

import math
from collections.abc import Collection, Sequence

from psserver.coordinator.tickets import Ticket
from psserver.policies import Apply, Part, PolicyError, TensorParts


def check_apply(apply: Apply, folded: Collection[Part], tensors: TensorParts) -> None:
    """`folded`: what is in the shards' open sum, in order."""
    parts = apply.parts
    if not parts or (len(parts) > 1 and len({part.ticket for part in parts}) < len(parts)):
        numbers = [part.ticket for part in parts]
        raise PolicyError(f"apply of tickets {numbers}: expected at least one, and each once")
    if folded:
        head, expected = list(parts[: len(folded)]), list(folded)
        if head != expected:
            raise PolicyError(f"apply of {head}: expected first what was folded, as it was: {expected}")
    if not (math.isfinite(apply.scale) and math.isfinite(apply.lr_scale)):
        raise PolicyError(f"expected finite scales, got {apply.scale} and {apply.lr_scale}")
    for part in parts:
        check_part(part, tensors)


def check_part(part: Part, tensors: TensorParts) -> None:
    if not (math.isfinite(part.factor) and math.isfinite(part.compensation)):
        raise PolicyError(f"expected finite weights, got {part}")
    if part.compensation and tensors.compensator is None:
        raise PolicyError(
            f"compensation of ticket {part.ticket}: expected a policy whose tensors name a compensator"
        )


def check_fold(part: Part, folded: Collection[int], tensors: TensorParts) -> None:
    """`folded`: tickets in the shards' open sum."""
    if tensors.lists:
        raise PolicyError(
            f"fold of ticket {part.ticket}: {tensors.aggregator} needs all contributions of an update "
            "at once; expected them in the apply only"
        )
    if part.ticket in folded:
        raise PolicyError(f"ticket {part.ticket} is folded already")
    check_part(part, tensors)


def check_list(tickets: Sequence[Ticket], tensors: TensorParts) -> None:
    """An aggregator trusts a number of workers: nobody may count twice."""
    name, workers = tensors.aggregator, [ticket.worker for ticket in tickets]
    if len(set(workers)) < len(workers) or len(workers) < tensors.fewest:
        raise PolicyError(
            f"apply of contributions of {', '.join(workers)}: {name} needs at least {tensors.fewest}, "
            "each of another worker"
        )
