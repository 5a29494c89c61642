"""The interface that the coordinator drives, as a base class."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from psserver.policies.decisions import Decision
from psserver.policies.declarations import BARE, PLAIN, LocalRule, TensorParts
from psserver.policies.events import Event
from pswire.records import StateError


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a worker has no grant.

    `event` completes the sentence "<worker> waits for ...". `releasers` are
    the workers whose next commit, done or departure can bring it about.
    """

    event: str
    releasers: tuple[str, ...] = ()


class Policy(ABC):
    """A deterministic state machine from events to decisions. Derive from it, and write `step` and `explain`.

    A class of one's own is made as ``Class(workers=N, **knobs)``; it need not
    call ``super().__init__``. The coordinator promises: events of a worker come
    after its Join; a Ready comes only from a worker that holds no open ticket
    (or one, from a worker that asks ahead, if the policy is `ahead`); a Commit
    or Abandon names a ticket that was granted and not cancelled; Leave closes
    the worker's open tickets (no Abandon follows), while its committed ones
    stay. The policy promises: it grants only tickets that wait, applies or
    drops each committed ticket exactly once, and never leaves every worker
    waiting.

    All attributes are constant while a job runs:

    `name`: what the decision log calls the policy. "": `build` sets the name by
    which it was loaded.
    `knobs`: every knob with its value: JSON-able, complete, enough to build the
    policy again. A class that does not set it gets the arguments of its
    ``__init__``, without `workers`, from `build`.
    `tensors`: the parts that see tensors, by name.
    `local_rule`: what workers do between pull and push.
    `ahead`: a worker that holds a ticket may be granted its next one.
    `by_rank`: an update does not depend on who commits first; work units are then dealt in the order of ranks.
    `retracts`: it takes the event `Refused`, and goes on as if it had dropped the contributions of the update.
    Under any other policy the first update that is not finite ends the job.
    `cancels`: it may close a ticket that a worker holds. Then no codec or local rule of workers may remember anything.
    `by_samples`: a contribution counts by its samples, so one without any counts for nothing.
    """

    name: str = ""
    knobs: Mapping[str, object] = MappingProxyType({})
    tensors: TensorParts = BARE
    local_rule: LocalRule = PLAIN
    ahead: bool = False
    by_rank: bool = False
    retracts: bool = False
    cancels: bool = False
    by_samples: bool = False

    @abstractmethod
    def step(self, event: Event) -> list[Decision]:
        """Take one event; answer with decisions, to be executed in order before the next event."""

    @abstractmethod
    def explain(self, worker: str) -> Waiting | None:
        """What would release a waiting worker; None when it does not wait."""

    def state(self) -> Mapping[str, object]:
        """All that it has learned from its events, JSON-able; asked between two events.

        Optional: without it and `restore`, a job of the policy cannot be taken up from a saved state.
        """
        raise StateError(
            f"policy {self.name} has no state(): a job of it cannot be saved; write state() and restore()"
        )

    def restore(self, state: Mapping[str, object]) -> None:
        """Take up what `state` gave, in a policy just made with the same knobs: the same events lead to the
        same decisions then. Raises for anything else, with nothing changed.
        """
        raise StateError(
            f"policy {self.name} has no restore(): a job of it cannot be taken up; write state() and restore()"
        )
