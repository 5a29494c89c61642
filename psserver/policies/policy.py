"""The base class of policies, which is the interface that the coordinator drives."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from psserver.policies.decisions import Decision, PolicyError
from psserver.policies.declarations import BARE, PLAIN, LocalRule, TensorParts
from psserver.policies.events import Event
from psserver.records import StateError


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a worker has no grant.

    `event` completes the sentence "<worker> waits for ...". `releasers` are the workers whose next commit, done or
    departure can end the wait. `timer`: the tag of a timer that can end it too; "": none.
    """

    event: str
    releasers: tuple[str, ...] = ()
    timer: str = ""


def config_of(policy: "Policy") -> dict[str, object]:
    """Return name and knobs, as the decision log has them."""
    return {"name": policy.name, **policy.knobs}


class Policy(ABC):
    """A deterministic state machine from events to decisions. Derive from it, and write `step` and `explain`.

    `build` makes your class as ``Class(workers=N, **knobs)``; it need not
    call ``super().__init__``. The coordinator promises: events of a worker come
    after its Join; a Ready comes only from a worker that holds no open ticket
    (or one, from a worker that asks ahead, if the policy is `ahead`); a Commit
    or Abandon names a ticket that was granted and not cancelled; Leave closes
    the worker's open tickets (no Abandon follows), while its committed ones
    stay. The policy promises: it grants only tickets that wait, applies or
    drops each committed ticket exactly once, and never leaves every worker
    waiting.

    All attributes are constant while a job runs:

    `name`: the policy's name in the decision log. "": `build` sets the name by
    which it was loaded.
    `knobs`: every knob with its value: JSON-able, complete, enough to build the
    policy again. A class that does not set it gets the arguments of its
    ``__init__``, without `workers`, from `build`.
    `tensors`: the parts that see tensors, by name.
    `local_rule`: what workers do between pull and push.
    `ahead`: a worker that holds a ticket may be granted its next one.
    `by_rank`: an update does not depend on the order of commits; work units are then dealt by rank.
    `by_samples`: a contribution is weighted by its number of samples, so one without samples has no weight.
    """

    name: str = ""
    knobs: Mapping[str, object] = MappingProxyType({})
    tensors: TensorParts = BARE
    local_rule: LocalRule = PLAIN
    ahead: bool = False
    by_rank: bool = False
    by_samples: bool = False

    @abstractmethod
    def step(self, event: Event) -> list[Decision]:
        """Take one event; answer with decisions, to be executed in order before the next event."""

    @abstractmethod
    def explain(self, worker: str) -> Waiting | None:
        """Return what would release a waiting worker; None if it does not wait."""

    @property
    def rests(self) -> bool:
        """Whether no contribution waits for its update, so that another policy may take over."""
        return False

    def check_succession(self, former: "Policy") -> None:
        """Raise PolicyError unless this policy, which is new, can take over from `former` while the job runs."""
        raise PolicyError(
            f"policy {self.name} cannot take over from {former.name} while the job runs: expected two compositions of "
            "parts, as the built-in policies are"
        )

    def succeed(self, former: "Policy", t: float) -> None:
        """Take over from `former` at `t` seconds of the job. Raises PolicyError, with nothing changed."""
        self.check_succession(former)

    def state(self) -> Mapping[str, object]:
        """Return everything that the policy remembers, JSON-able. Called between two events.

        Optional: without `state` and `restore` the policy's jobs cannot be saved and resumed.
        """
        raise StateError(
            f"policy {self.name} has no state(): a job of it cannot be saved; write state() and restore()"
        )

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore what `state` returned, in a policy just made with the same knobs.

        The same events must then give the same decisions. Raises for anything else, with nothing changed.
        """
        raise StateError(
            f"policy {self.name} has no restore(): a job of it cannot be taken up; write state() and restore()"
        )

    def go_on(self, state: Mapping[str, object], version: int) -> None:  # noqa: B027 - a hook, not an obligation
        """Begin with a job that had stopped at `version` and goes on: all workers have left, and all tickets are over.

        `state`: what `state` returned then, from a policy with the same knobs. By default the policy begins as for a
        new job. Override it to keep a promise that counts what happened before, such as a number of misses in a row.
        """
