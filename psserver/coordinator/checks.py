"""What the coordinator demands of a policy's decisions. Each check raises PolicyError with what was expected."""

import math
from collections.abc import Collection, Sequence

from psserver.coordinator.tickets import Ticket
from psserver.policies import Apply, Cancel, Drop, Grant, Part, PolicyError, Stop, TensorParts

# Tuples made once: these checks are a part of every step.
_SEQUENCE, _NUMBER = (tuple, list), (int, float)


def check_apply(apply: Apply, folded: Collection[Part], tensors: TensorParts) -> None:
    """`folded`: what is in the shards' open sum, in order."""
    parts = apply.parts
    if not isinstance(parts, _SEQUENCE):
        raise PolicyError(f"apply of {parts!r}: expected a tuple of Part(ticket, factor)")
    for part in parts:
        check_part(part, tensors)
    if not parts or (len(parts) > 1 and len({part.ticket for part in parts}) < len(parts)):
        numbers = [part.ticket for part in parts]
        raise PolicyError(f"apply of tickets {numbers}: expected at least one, and each once")
    if folded:
        head, expected = list(parts[: len(folded)]), list(folded)
        if head != expected:
            raise PolicyError(f"apply of {head}: expected first what was folded, as it was: {expected}")
    if not (_finite(apply.scale) and _finite(apply.lr_scale)):
        raise PolicyError(f"expected finite scales, got {apply.scale!r} and {apply.lr_scale!r}")


def check_part(part: Part, tensors: TensorParts) -> None:
    if not isinstance(part, Part):
        raise PolicyError(f"apply of {part!r}: expected Part(ticket, factor)")
    if not (_finite(part.factor) and _finite(part.compensation)):
        raise PolicyError(f"expected finite weights, got {part}")
    if part.compensation and tensors.compensator is None:
        raise PolicyError(
            f"compensation of ticket {part.ticket}: expected a policy whose tensors name a compensator"
        )


def _finite(value: object) -> bool:
    """Of somebody else's code, which need not give a number."""
    return isinstance(value, _NUMBER) and math.isfinite(value)


def check_grant(grant: Grant) -> None:
    """A turn travels to the shards as a whole number."""
    if not (grant.turn is None or (isinstance(grant.turn, int) and grant.turn >= 0)):
        raise PolicyError(f"grant of ticket {grant.ticket}: expected a turn of 0 or more, got {grant.turn!r}")


def check_reason(decision: Drop | Cancel | Stop) -> None:
    """A reason stands in the log, and goes to the worker."""
    if not isinstance(decision.reason, str):
        raise PolicyError(f"{decision}: expected a text as its reason")


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
