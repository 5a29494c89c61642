"""A coordinator with a clock of its own: a method for each action of a worker, and all outputs."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from pslab.check.checker import CheckResult, check_log
from pslab.runs.log import read_log
from psserver.coordinator import (
    Coordinator,
    Declined,
    Input,
    JobState,
    JobTerms,
    Joined,
    Output,
    Record,
    Send,
    declined,
    inputs,
)
from psserver.coordinator.roster import Member
from psserver.coordinator.saving import reopen
from psserver.coordinator.terms import Proposal
from psserver.coordinator.units import WorkTerms
from psserver.decisions.entries import Checkpoint, Entry
from psserver.policies import Policy, PolicyError, build
from pswire import protocol
from pswire.generations import Generation

E = TypeVar("E", bound=Entry)
N = TypeVar("N")


class JoinError(ValueError):
    """The coordinator has refused a Join."""

    def __init__(self, answer: Declined) -> None:
        super().__init__(answer.reason)
        self.answer = answer


# Of every job that is verified.
MODEL: Final = Proposal("model", {"name": "sgd"})


@dataclass
class CoordinatorHarness:
    """A coordinator whose time stands still until `passes`. Workers are w0, w1, ... with that rank.

    `work`: of a job that deals work units. `outputs`: everything in order; `log` and `told`: the same by kind:
    log entries, messages to workers. `generation`: how often the servers have crashed;
    `saved`: the newest checkpoint.
    """

    policy: str | Policy = "async"
    knobs: Mapping[str, object] = field(default_factory=dict)
    workers: int = 2
    terms: Mapping[str, Any] = field(default_factory=dict)
    now: float = 0.0
    work: WorkTerms | None = None
    optimizer: dict[str, object] = field(default_factory=lambda: {"name": "sgd"})
    outputs: list[Output] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    told: list[Send] = field(default_factory=list)
    coordinator: Coordinator = field(init=False)
    generation: int = 0
    saved: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.coordinator = self._new()
        self.gives(inputs.Opened())
        self.gives(inputs.ModelProposed(replace(MODEL, optimizer=self.optimizer)))
        if self.work is not None:
            self.gives(inputs.WorkDeclared(self.work))

    def _policy(self) -> Policy:
        return self.built(self.policy, self.knobs) if isinstance(self.policy, str) else self.policy

    def _new(self, state: JobState | None = None) -> Coordinator:
        settings: dict[str, Any] = {
            "job": Generation("j", self.generation).name,
            "workers": self.workers,
            "worker_timeout": 9.0,
            "generation": self.generation,
        }
        return Coordinator(JobTerms(**settings | dict(self.terms)), self._policy(), given=state)

    def gives(self, given: Input) -> list[Output]:
        """Give the coordinator an input now."""
        return self.take(self.coordinator.take(given, self.now))

    def take(self, outputs: list[Output]) -> list[Output]:
        self.outputs += outputs
        self.log += [output for output in outputs if isinstance(output, Record)]
        self.told += [output for output in outputs if isinstance(output, Send)]
        if outputs and isinstance(outputs[-1], Record) and isinstance(outputs[-1].entry, Checkpoint):
            self.saved = self.coordinator.saved()
        return outputs

    # Servers

    def servers_crash(self, expected: Sequence[str] = (), servers: int = 0) -> list[Output]:
        """Restart all servers from the newest checkpoint, which must have been the last output of some input.

        `servers`: how many they are from now on; 0: as many as before.
        """
        assert self.saved is not None, "nothing is saved"
        state, self.generation = JobState.read(self.saved), self.generation + 1
        kept = state.entries
        void, self.log = len(self.log) - kept, self.log[:kept]
        if servers:
            self.terms = {**self.terms, "servers": servers}
            state.servers = servers
        reopen(state, self._policy())
        self.coordinator = self._new(state)
        return self.gives(inputs.Resumed(void, frozenset(expected)))

    def servers_restart(self, servers: int = 0) -> list[Output]:
        """Save a checkpoint now, and restart all servers from it. Does nothing if there is no version to save.

        Raises StateError for a policy that cannot be saved.
        """
        outputs = self.gives(inputs.SaveAsked())
        return self.servers_crash(servers=servers) if outputs else []

    def copy_takes_over(self) -> None:
        """Have a copy of the coordinator decide from now on. Raises StateError for a policy that cannot be saved."""
        self.coordinator = self._new(JobState.read(json.loads(json.dumps(self.coordinator.saved()))))

    # Workers

    def joins(
        self,
        worker: str,
        session: str = "A",
        rank: int | None = None,
        *,
        stays: bool = False,
        used: int = 0,
    ) -> Member:
        """Have a process join and open its session. Raises JoinError if it is refused."""
        rank = int(worker[1:]) if rank is None else rank
        self.join(worker, session, rank, stays=stays, used=used)
        self.connects(worker, session)
        return self.member(worker)

    def join(self, worker: str, session: str, rank: int | None, **more: Any) -> Member:
        """Have a process join, as `JoinAsked` says. Raises JoinError if it is refused."""
        for answer in self.gives(inputs.JoinAsked(worker, session, rank, **more)):
            if isinstance(answer, Declined):
                raise JoinError(answer)
            if isinstance(answer, Joined):
                worker = answer.worker
        return self.member(worker)

    def connects(self, worker: str, session: str = "A") -> list[Output]:
        return self.gives(inputs.Connected(worker, self.incarnation(worker), session))

    def disconnects(self, worker: str) -> list[Output]:
        return self.gives(inputs.Disconnected(worker, self.incarnation(worker)))

    def leaves(self, worker: str, reason: str = "finished") -> list[Output]:
        return self.asks(worker, protocol.Leave(reason))

    def asks(self, worker: str, request: protocol.Request, **found: Any) -> list[Output]:
        """Send a request of the worker's process."""
        return self.gives(inputs.Requested(worker, self.incarnation(worker), request, **found))

    def ready(self, *workers: str) -> list[Output]:
        outputs: list[Output] = []
        for worker in workers:
            outputs += self.asks(worker, protocol.Ready())
        return outputs

    def commits(self, worker: str, ticket: int | None = None, **facts: Any) -> list[Output]:
        """Commit `ticket`, or the one that it holds. Ask for more unless `ready=False` is among the facts."""
        ready = facts.pop("ready", True)
        facts = {"samples": 8, "loss": 0.5} | facts
        norm = facts.pop("norm", 1.0)
        ticket = self.holds(worker) if ticket is None else ticket
        assert ticket is not None, f"{worker} holds nothing"
        return self.asks(worker, protocol.Commit(ticket, ready=ready, **facts), norm=norm)

    def shards_make(self, version: int, **fact: Any) -> list[Output]:
        """Tell the fact about a version, with the fields of `Executed`."""
        return self.gives(inputs.Executed(version, **fact))

    def abandons(
        self, worker: str, ticket: int | None = None, reason: str = "test", *, unit_ends: bool = False
    ) -> list[Output]:
        ticket = self.holds(worker) if ticket is None else ticket
        assert ticket is not None, f"{worker} holds nothing"
        return self.asks(worker, protocol.Abandon(ticket, reason, unit_ends))

    def done(self, worker: str, ends: str = "") -> list[Output]:
        return self.asks(worker, protocol.Done(ends))

    def changes_policy(self, name: str, knobs: Mapping[str, object], why: str = "") -> list[Output]:
        """Have an operator change the policy. Raises PolicyError."""
        policy = self.built(name, knobs)
        outputs = self.gives(inputs.ChangeAsked(name, dict(policy.knobs), "operator", why))
        refused = declined(outputs)
        if refused is not None:
            raise PolicyError(refused.reason)
        return outputs

    def built(self, name: str, knobs: Mapping[str, object]) -> Policy:
        return build(name, knobs, self.workers)

    def passes(self, seconds: float) -> list[Output]:
        self.now += seconds
        return self.gives(inputs.Tick())

    # Several steps at once

    def gathers(self, *workers: str) -> None:
        """Have these workers join, or all."""
        for worker in workers or [f"w{rank}" for rank in range(self.workers)]:
            self.joins(worker)

    def starts(self, *workers: str) -> "CoordinatorHarness":
        """Have these workers join, or all; the first installs its values; all ask. The first grants are out."""
        names = workers or tuple(f"w{rank}" for rank in range(self.workers))
        self.gathers(*names)
        self.ready(names[0])
        self.commits(names[0], ready=False)
        self.ready(*names)
        return self

    # Results

    def incarnation(self, worker: str) -> int:
        member = self.coordinator.state.roster.present.get(worker)
        return member.incarnation if member else self.coordinator.state.roster.tally(worker).incarnations - 1

    def holds(self, worker: str) -> int | None:
        opened = self.coordinator.state.tickets.open_of(worker)
        return opened[0].number if opened else None

    def member(self, worker: str) -> Member:
        return self.coordinator.state.roster.present[worker]

    def entries(self, kind: type[E]) -> list[E]:
        return [record.entry for record in self.log if isinstance(record.entry, kind)]

    @property
    def kinds(self) -> list[str]:
        return [record.entry.kind for record in self.log]

    @property
    def version(self) -> int:
        return self.coordinator.state.version

    @property
    def stopped(self) -> str:
        """Cause and reason of the stop ("done: all workers are done"); empty while the job runs."""
        stopped = self.coordinator.state.stopped
        return f"{stopped.cause}: {stopped.reason}" if stopped else ""

    def lines(self) -> list[str]:
        """Return the decision log as it is written to disk."""
        return [
            json.dumps({"i": r.index, "t": r.t, **r.entry.to_json()}, allow_nan=False) + "\n"
            for r in self.log
        ]

    def verdict(self) -> CheckResult:
        """Return the result of `ps-lab check` for the log."""
        return check_log(read_log(io.StringIO("".join(self.lines()))))

    def state(self) -> str:
        """See `memory_of`."""
        return memory_of(self.coordinator)


def memory_of(coordinator: Coordinator) -> str:
    """Return all that a coordinator remembers, as text: equal before and after a message that must change nothing."""
    state, now = coordinator.state, coordinator.state.now
    try:
        state.now = 0.0
        return repr((state, vars(coordinator.policy)))
    finally:
        state.now = now


def notices(outputs: list[Output], kind: type[N]) -> list[N]:
    """Return the notices of one kind among outputs."""
    return [o.notice for o in outputs if isinstance(o, Send) and isinstance(o.notice, kind)]


def refusals(outputs: list[Output]) -> list[str]:
    return [notice.message for notice in notices(outputs, protocol.Refusal)]


def granted(outputs: list[Output]) -> list[int]:
    return [notice.ticket for notice in notices(outputs, protocol.Grant)]
