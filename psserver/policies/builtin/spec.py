"""What an entry of the shelf is made of, and how its knobs are checked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from psserver.policies.composed import Composition
from psserver.policies.policy import PolicyError


@dataclass(frozen=True, slots=True)
class Cost:
    """Beyond the model itself: what the servers keep, what they do per push, and what is lost."""

    stores: str
    work: str
    waste: str


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A named policy: a dataclass whose fields are its knobs and whose docstring is its rule.

    The first line of the docstring is the rule in one sentence. `optimizer`:
    keys of [optimizer] that the rule is meant for; empty when any will do.
    """

    guarantee: ClassVar[str]
    source: ClassVar[str]
    cost: ClassVar[Cost]
    optimizer: ClassVar[Mapping[str, object]] = {}

    def compose(self, workers: int) -> Composition:
        """The five choices, for a job that starts with `workers` workers.

        Raises PolicyError when a knob is out of its range.
        """
        raise TypeError(f"{type(self).__name__} composes nothing: expected one of the shelf's own entries")


@dataclass(frozen=True, slots=True)
class Knob:
    """`range` in words, as "1 .. workers"."""

    name: str
    default: object
    meaning: str
    range: str


def knob(default: Any, meaning: str, range: str) -> Any:
    return field(default=default, metadata={"meaning": meaning, "range": range})


def knobs_of(entry: type[PolicySpec]) -> tuple[Knob, ...]:
    """The knobs of an entry, in order."""
    return tuple(Knob(f.name, f.default, f.metadata["meaning"], f.metadata["range"]) for f in fields(entry))


def at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise PolicyError(f"policy.{name} is {value}; expected at least {least}")


def below(name: str, value: float, bound: float) -> None:
    if value >= bound:
        raise PolicyError(f"policy.{name} is {value}; expected less than {bound}")


def above(name: str, value: float, bound: float) -> None:
    if value <= bound:
        raise PolicyError(f"policy.{name} is {value}; expected more than {bound}")


def check_decay(name: str, value: float) -> None:
    """Of a running mean: the part that is kept."""
    at_least(name, value, 0)
    below(name, value, 1)


def one_of(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise PolicyError(f"policy.{name} is {value!r}; expected one of {', '.join(known)}")


def at_most_all(aggregate: int, workers: int) -> None:
    """At most one contribution per worker and update. More could never come where contributors wait for the update."""
    at_least("aggregate", aggregate, 1)
    if aggregate > workers:
        raise PolicyError(
            f"policy.aggregate is {aggregate}, but there are {workers} workers: expected 1 .. {workers}, "
            "one contribution per worker and update; lower aggregate or add workers"
        )
