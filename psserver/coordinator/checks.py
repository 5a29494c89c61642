"""Checks of a policy's decisions. Each raises PolicyError, which says what was expected."""

from collections.abc import Collection, Sequence

from psserver.coordinator.tickets import Ticket
from psserver.policies import Apply, Cancel, Drop, Grant, Part, PolicyError, Stop, TensorParts
from pswire.domains import LARGEST_SINGLE

# The shards compute in float32; a number beyond it would make every weight infinite. NaN compares with nothing.
LARGEST = LARGEST_SINGLE
# Built once, because these checks run in every step.
_SEQUENCE, _NUMBER = (tuple, list), (int, float)


def check_apply(apply: Apply, folded: Collection[Part], tensors: TensorParts) -> None:
    """Check an update. `folded`: the parts in the shards' open sum, in order."""
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
    scale, rate = apply.scale, apply.lr_scale
    if not (_in_range(scale) and _in_range(rate) and rate >= 0):
        raise PolicyError(
            f"expected a scale and a scale of the learning rate within {LARGEST:g}, the latter of 0 or more, "
            f"got {scale!r} and {rate!r}"
        )
    if abs(scale) > 1:
        for part in parts:
            if not _in_range(part.factor * scale):
                raise PolicyError(
                    f"weight of ticket {part.ticket}: {part.factor!r} times {scale!r} is beyond {LARGEST:g}"
                )


def check_part(part: Part, tensors: TensorParts) -> None:
    """Check the factors of one contribution."""
    if not isinstance(part, Part):
        raise PolicyError(f"apply of {part!r}: expected Part(ticket, factor)")
    if not (_in_range(part.factor) and _in_range(part.compensation)):
        raise PolicyError(f"expected weights within {LARGEST:g}, got {part}")
    if part.compensation and tensors.compensator is None:
        raise PolicyError(
            f"compensation of ticket {part.ticket}: expected a policy whose tensors name a compensator"
        )


def _in_range(value: object) -> bool:
    """Whether a value from a policy, which may be of any type, is a number that float32 can hold."""
    return isinstance(value, _NUMBER) and -LARGEST <= value <= LARGEST


def check_grant(grant: Grant) -> None:
    """Check the turn, which the shards receive as a whole number."""
    if not (grant.turn is None or (isinstance(grant.turn, int) and grant.turn >= 0)):
        raise PolicyError(f"grant of ticket {grant.ticket}: expected a turn of 0 or more, got {grant.turn!r}")


def check_reason(decision: Drop | Cancel | Stop) -> None:
    """Check the reason, which goes into the log and to the worker."""
    if not isinstance(decision.reason, str):
        raise PolicyError(f"{decision}: expected a text as its reason")


def check_fold(part: Part, folded: Collection[int], tensors: TensorParts) -> None:
    """Check a fold. `folded`: tickets in the shards' open sum."""
    if tensors.lists:
        raise PolicyError(
            f"fold of ticket {part.ticket}: {tensors.aggregator} needs all contributions of an update "
            "at once; expected them in the apply only"
        )
    if part.ticket in folded:
        raise PolicyError(f"ticket {part.ticket} is folded already")
    check_part(part, tensors)


def check_list(tickets: Sequence[Ticket], tensors: TensorParts) -> None:
    """Check that an aggregator gets contributions of enough different workers."""
    name, workers = tensors.aggregator, [ticket.worker for ticket in tickets]
    if len(set(workers)) < len(workers) or len(workers) < tensors.fewest:
        raise PolicyError(
            f"apply of contributions of {', '.join(workers)}: {name} needs at least {tensors.fewest}, "
            "each of another worker"
        )
