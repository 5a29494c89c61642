"""The parts of a policy, and which of them go together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from psserver.policies.decisions import PolicyError
from psserver.policies.declarations import BARE, PLAIN, LocalRule, TensorParts
from psserver.policies.parts.deadlines import Deadline
from psserver.policies.parts.gates import Gate, WaitForUpdate
from psserver.policies.parts.staleness_rules import Compensate, DropStale, StalenessRule
from psserver.policies.parts.triggers import CancelStale, Trigger
from psserver.policies.parts.weights import Weight


@dataclass(frozen=True, slots=True)
class Composition:
    """The parts of a policy.

    `gate`: which workers may start. `trigger`: which contributions make an update. `staleness`: how an old
    contribution is treated.
    `weight`: factor of a contribution by its staleness, on top of the staleness rule's factor; None: 1.
    `norm`: "mean" scales an update of K contributions by 1/K (not by the sum of their weights), "sum" by 1.
    `most_samples`: 0, or the mean is over samples: a contribution is weighted by its number of samples, up to this.
    `lr_scale`: factor of the learning rate by the staleness of the update's stalest contribution; None: 1. It
    differs from `weight` for momentum and Adam.
    `cancel`: which open tickets an update cancels; None: none.
    `order`: "rank" sums the contributions of a round by worker rank, so that two runs agree to the bit; "commit"
    sums them in order of arrival.
    `tensors`: the parts that see tensors, by name. An aggregator that needs the list of contributions scales them
    itself, whatever `norm` says.
    `local`: what workers do between pull and push.
    `deadline`: when an update stops waiting for late workers; None: never.

    Raises PolicyError for parts that do not go together.
    """

    gate: Gate
    trigger: Trigger
    staleness: StalenessRule
    weight: Weight | None = None
    norm: Literal["mean", "sum"] = "mean"
    lr_scale: Weight | None = None
    most_samples: int = 0
    cancel: CancelStale | None = None
    order: Literal["rank", "commit"] = "commit"
    tensors: TensorParts = BARE
    local: LocalRule = PLAIN
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        for name, methods in _METHODS.items():
            _check_part(name, getattr(self, name), methods, optional=name in _OPTIONAL)
        for name, kind in (("tensors", TensorParts), ("local", LocalRule)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(f"{name}: expected {kind.__name__}(...), got {getattr(self, name)!r}")
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            raise PolicyError(f"deadline: expected Deadline(...) or None, got {self.deadline!r}")
        if self.deadline is not None and self.order == "rank":
            raise PolicyError(
                "order: expected 'commit' beside a deadline: who is in time is chance, so there is no order by rank"
            )
        for name, words in (("norm", ("mean", "sum")), ("order", ("rank", "commit"))):
            if getattr(self, name) not in words:
                raise PolicyError(
                    f"{name}: expected {' or '.join(map(repr, words))}, got {getattr(self, name)!r}"
                )
        if isinstance(self.staleness, Compensate) and self.tensors.compensator is None:
            raise PolicyError(
                "the staleness rule compensates: expected tensors=TensorParts(compensator=...), got no compensator"
            )
        if self.tensors.lists and not isinstance(self.gate, WaitForUpdate):
            raise PolicyError(
                f"{self.tensors.aggregator} needs contributions of different workers: expected the gate WaitForUpdate, "
                f"got {type(self.gate).__name__}"
            )
        if self.tensors.fragments > 1 and self.staleness != DropStale(0):
            raise PolicyError(
                "fragments: an update changes its own version's group only: expected the staleness rule DropStale(0)"
            )
        if self.most_samples and (self.norm != "mean" or self.tensors.lists):
            raise PolicyError(
                f"most_samples: expected 0 beside norm {self.norm!r} and aggregator {self.tensors.aggregator!r}: "
                "only a mean is weighted by samples"
            )
        if self.cancel is not None and self.local.remembers:
            raise PolicyError(
                f"cancel: expected None beside a local rule that remembers, which {self.local.name} is: "
                "a commit that a cancel crosses would be remembered"
            )


# Methods that each part must have. Checked at construction, so that a job does not fail in the middle.
_METHODS = {
    "gate": ("completed", "admits", "hold", "stamp", "ahead", "bounds_clocks", "state", "restore"),
    "trigger": ("fires",),
    "staleness": ("judge", "blocked", "blockers", "delays_grants", "ahead"),
    "weight": ("__call__",),
    "lr_scale": ("__call__",),
    "cancel": ("void",),
}
_OPTIONAL = ("weight", "lr_scale", "cancel")


def _check_part(name: str, part: object, methods: Sequence[str], *, optional: bool) -> None:
    if part is None and optional:
        return
    if isinstance(part, type):
        raise PolicyError(
            f"{name}: expected an object, got the class {part.__name__}; write {part.__name__}(...)"
        )
    missing = [method for method in methods if not hasattr(part, method)]
    if missing:
        raise PolicyError(f"{name}: {part!r} lacks {', '.join(missing)}; see psserver.policies.parts")
