"""The interface that the coordinator drives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from psserver.policies.decisions import Decision
from psserver.policies.events import Event

if TYPE_CHECKING:
    from psserver.policies.tensors import TensorParts


class PolicyError(ValueError):
    """A policy or one of its knobs is unknown or out of range. The text says what is known."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a worker has no grant.

    `event` completes the sentence "<worker> waits for ...". `releasers` are
    the workers whose next commit, done or departure can bring it about.
    """

    event: str
    releasers: tuple[str, ...] = ()


class Policy(Protocol):
    """A deterministic state machine from events to decisions.

    The coordinator promises: events of a worker come after its Join; a Ready
    comes only from a worker that holds no open ticket (or one, from a worker
    that asks ahead, if the policy has an attribute `ahead` that is true); a Commit or Abandon
    names a ticket that was granted and not cancelled; Leave closes the
    worker's open tickets (no Abandon follows), while its committed ones stay.
    The policy promises: it grants only tickets that wait, applies or drops
    each committed ticket exactly once, and never leaves every worker waiting.
    It may have a `local_rule` besides (see `psserver.policies.local_work`).

    It may have `state()` and `restore(state)`, without which a job of it cannot
    be taken up from a saved state. `state()`, asked between two events, returns
    all that it has learned from its events as a JSON-able dict. `restore` takes
    such a dict up, in a policy just made with the same knobs, or raises with
    nothing changed: the same events lead to the same decisions then.
    """

    @property
    def name(self) -> str: ...

    @property
    def knobs(self) -> Mapping[str, object]:
        """Every knob with its value: JSON-able, complete, enough to build the policy again."""
        ...

    @property
    def tensors(self) -> "TensorParts":
        """The parts that see tensors, by name: constant; `tensors.BARE` when it has none of its own."""
        ...

    def step(self, event: Event) -> list[Decision]:
        """Take one fact; answer with decisions, to be executed in order before the next fact."""
        ...

    def explain(self, worker: str) -> Waiting | None:
        """What would release a waiting worker; None when it does not wait."""
        ...
