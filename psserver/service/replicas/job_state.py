"""Everything about a job but its shard, in a copy: what its coordinator knows, and what leads there again."""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from psserver.coordinator import Coordinator, JobState
from psserver.decisions.counting import Pending
from psserver.service.job.job import ServedJob
from psserver.service.replicas.deciding import ReplicatedDecider
from psserver.service.replicas.followers import PartFollower
from psserver.service.replicas.learning import restore
from psserver.service.replicas.same import named
from psserver.service.replicas.transfer import WholeCopy
from pswire.v1 import shard_pb2


def about_job(job: ServedJob, decider: ReplicatedDecider) -> dict[str, Any]:
    """Return everything but the shard, and the orders that other parts may lack. Raises StateError for a policy that
    cannot be saved."""
    model = b"" if decider.model is None else decider.model.SerializeToString()
    return {
        **named(job),
        "model": base64.b64encode(model).decode(),
        "coordinator": decider.coordinator.saved(),
        "now": decider.now(),
        "first_grant": decider.routes.first_grant,
        "pending": _plain(decider.routes.run_log.pending),
        "orders": [base64.b64encode(each.kept()).decode() for each in _followers(decider)],
    }


def _followers(decider: ReplicatedDecider) -> Iterator[PartFollower]:
    for follower in decider.routes.followers:
        assert isinstance(follower, PartFollower)
        yield follower


def _plain(pending: Pending) -> dict[str, Any]:
    tickets = [[ticket, *each] for ticket, each in pending.tickets.items()]
    return {"tickets": tickets, "samples": pending.samples, "losses": list(pending.losses)}


def pending_of(about: Mapping[str, Any]) -> Pending:
    """Return what is known of contributions without a fate."""
    found = about["pending"]
    tickets = {int(ticket): (int(samples), float(loss)) for ticket, samples, loss in found["tickets"]}
    return Pending(tickets, int(found["samples"]), found["losses"])


async def take_up(
    whole: WholeCopy, state: JobState, job: ServedJob, configure: Callable[[shard_pb2.Configure], None]
) -> None:
    """Restore a new job from a copy; `state`: the coordinator's in it. `configure` makes the shard.

    Raises StateError, Refused, CopyError, and what a damaged copy leads to: ValueError, KeyError, TypeError.
    """
    about, decider, host = whole.about, job.decider, job.host
    assert isinstance(decider, ReplicatedDecider)
    for follower, orders in zip(_followers(decider), about["orders"], strict=True):
        follower.keep(base64.b64decode(orders))
    if about["model"]:
        decider.model = shard_pb2.Configure.FromString(base64.b64decode(about["model"]))
        configure(decider.model)
        for each in decider.routes.followers:
            each.configure(decider.model)
        shard = host.state.shard
        assert shard is not None
        # Rows need compiled kernels, and a copy in sync must not compile when it takes over.
        await host.state.wait_ready()
        host.state.check_going(host.server)
        # Nobody else has this shard yet.
        await host.runtime.passes.on_pool(lambda: restore(shard, whole))
    coordinator = Coordinator(decider.coordinator.terms, job.agreement.policy, state)
    began = about["first_grant"]
    first_grant = None if began is None else float(began)
    decider.routes.go_on(state.entries, state.version, tuple(state.folded), first_grant)
    decider.take_up(coordinator)
    if host.state.shard is not None:
        decider.executed(0, host.state.shard.fact)
    decider.hear(float(about["now"]))
    host.go_on(state.entries)
