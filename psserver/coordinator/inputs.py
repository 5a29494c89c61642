"""The inputs of a coordinator: one record for each thing that can happen to a job.

`Coordinator.take` is the only way in. Servers, copies, simulators and tests feed the same records; `encode` and
`decode` are their form on the wire.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, get_args

from psserver.coordinator.terms import Extent, Proposal
from psserver.coordinator.units import WorkTerms
from psserver.records import from_plain, to_plain
from pswire import protocol
from pswire.values import value


class Input:
    """The base of all inputs."""

    __slots__ = ()

    @property
    def told(self) -> bool:
        """Whether it only tells the coordinator a fact, and decides nothing by itself."""
        return False


class Fact(Input):
    """An input that decides nothing by itself: what follows from it, follows at the next input."""

    __slots__ = ()

    @property
    def told(self) -> bool:
        return True


# The job


@value
class Opened(Input):
    """The job begins: its first log entry is written. Comes once, before any other input."""


@value
class ModelProposed(Fact):
    """The model and the optimizer of the newest Join. The log has those that were proposed last when the first initial
    values came; a later proposal tells of the same ones on other servers."""

    proposal: Proposal


@value
class Resumed(Input):
    """The job goes on in new processes, from a checkpoint's state.

    Open tickets are cancelled and members leave; their commits stay. Grants begin again when as many workers are ready
    as at the start, or when all `expected` ones are, if any are given. `rolled_back`: the log entries that were lost.
    """

    rolled_back: int
    expected: frozenset[str] = frozenset()


@value
class Stopping(Input):
    """The job ends from outside (a signal, a lost server). `cause`: as in `Stopped`."""

    reason: str
    success: bool
    cause: str


# Members


@value
class JoinAsked(Input):
    """A process asks to become a member. A `Joined` or a `Declined` among the outputs answers it.

    An empty `worker` gets the name "w<rank>", a `rank` of None the lowest free one. The same `session` again is the
    same member. A present worker of the same name with another session is superseded; whether it may be is decided
    before (`psserver.service.job.names_in_use`). `remembers`: its codec derives payloads from earlier ones. `stays`:
    its process may take part in a further phase of the job. When all members are done, those that stay are notified,
    and the job continues when each of them has joined again or left; it ends when no member is left. `used`: for a
    session that joins again and does not go back, one past the last batch that it committed; batches of these that the
    log lacks are missing. `computes`: what it computes with, for people. `function`: a digest of what its
    model computes, the same for all workers that name one. `by`: who joins, for a superseded worker ("another process
    (...)").
    """

    worker: str
    session: str
    rank: int | None = None
    remembers: bool = False
    stays: bool = False
    used: int = 0
    computes: str = ""
    function: str = ""
    by: str = ""


@value
class Connected(Input):
    """A member's session stream is up (again). What it may have missed is repeated."""

    worker: str
    incarnation: int
    session: str


@value
class Disconnected(Input):
    """A member's stream broke. It may come back within the grace period."""

    worker: str
    incarnation: int


@value
class Requested(Input):
    """A request of this incarnation of a worker. A repeated one is answered again and counts once.

    A commit comes behind the `Executed` of its ticket's version. `norm`: from the receipts of a commit, the L2 norm of
    the gradient, NaN if there is none. Ready asks for the next ticket: the worker is idle, or works on ticket
    `holding` and asks ahead. If it already holds a later ticket, it is sent that one again. A policy that does not
    grant ahead ignores the request. Abandon of a settled ticket, such as a cancelled one, changes nothing. After Done
    a worker has no more data: barriers shrink, and the job ends when all workers are done, or at once if `ends` gives a
    reason; a ticket that the worker still holds is abandoned, because it may come from a repeated Ready. A Report
    changes nothing here.
    """

    worker: str
    incarnation: int
    request: protocol.Request
    norm: float = math.nan


@value
class DataSized(Fact):
    """How much data a worker has, for the progress that people see."""

    worker: str
    extent: Extent


@value
class WorkDeclared(Input):
    """How the job's data is dealt; None: it is not. Comes before version 0; repeating it changes nothing."""

    terms: WorkTerms | None


# Versions


@value
class Executed(Input):
    """All shards have made `version`. Each version has one, in their order; another one changes nothing.

    `kept`: the number of elements that keep their old values, because their new ones would not be finite. `elements`:
    how many the update could change. `variable`: the one with most of `kept`. `whole`: a whole variable is kept.
    """

    version: int
    kept: int = 0
    elements: int = 0
    variable: str = ""
    whole: bool = False

    @property
    def told(self) -> bool:
        return not self.kept


@value
class SaveAsked(Input):
    """A checkpoint of the newest version is wanted, unless it is saved: a signal ends the job."""


@value
class SaveFailed(Input):
    """A checkpoint failed; the next one is ordered sooner."""

    version: int
    reason: str


# Time and people


@value
class Tick(Input):
    """Time passes: absent members are evicted, the end is detected. Comes at least once a second."""


@value
class NoteAdded(Input):
    """An operator's remark for the log, without further effect. Ignored once the job has stopped."""

    text: str


@value
class ChangeAsked(Input):
    """Another built-in policy is to decide as soon as no contribution waits for an update; see `changes`.

    If another change waits already, this one takes its place at once, and the contributions that wait are dropped.
    `rate`: factor of the job's learning rate from then on; None: as it is. A `Declined` among the outputs says why it
    cannot be: the job does not train, or the policy cannot take over or would make no update.
    """

    name: str
    knobs: dict[str, object]
    by: str
    why: str = ""
    rate: float | None = None


KINDS: Final[Mapping[str, type[Input]]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Input) and kind not in (Input, Fact)
}
"""Every kind of input by name."""

_REQUESTS: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in get_args(protocol.Request)}


def encode(given: Input) -> dict[str, Any]:
    """Return an input as plain data for JSON."""
    plain: dict[str, Any] = to_plain(given)
    if isinstance(given, Requested):
        plain["request"] = [type(given.request).__name__, plain["request"]]
    return {"kind": type(given).__name__, **plain}


def decode(data: Mapping[str, Any]) -> Input:
    """Read what `encode` returned. Raises StateError or KeyError for anything else."""
    plain = dict(data)
    kind = KINDS[plain.pop("kind")]
    if kind is Requested:
        name, request = plain.pop("request")
        return Requested(
            **plain | {"request": from_plain(_REQUESTS[name], request, name), "norm": float(plain["norm"])}
        )
    return from_plain(kind, plain, kind.__name__)
