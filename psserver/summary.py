"""summary.json: the configuration and the result of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

from psserver.coordinator import Coordinator
from psserver.policies.policy import config_of
from pswire.model.table_figures import TableFigures, together
from pswire.starving import uncounted


def summarise(
    coordinator: Coordinator,
    *,
    metrics: Mapping[str, float],
    seconds: float,
    sha256: str | None,
    tables: Iterable[TableFigures] = (),
) -> dict[str, Any]:
    """Summarise a job that has stopped. `seconds`: from its first grant to its stop. `tables`: of all servers."""
    stopped, terms, policy = coordinator.state.stopped, coordinator.terms, coordinator.policy
    assert stopped is not None
    tallies = coordinator.state.roster.tallies
    return {
        "job": terms.job,
        "success": stopped.success,
        "reason": stopped.reason,
        "policy": config_of(policy),
        # Only if another policy has taken over while the job ran.
        **({"began_with": former} if (former := coordinator.state.changes.began_with) else {}),
        "optimizer": coordinator.state.proposal.optimizer,
        "servers": terms.servers,
        "workers": len(tallies),
        "versions": coordinator.state.version,
        "samples": sum(tally.samples for tally in tallies.values()),
        "wall_seconds": round(seconds, 6),
        "metrics": dict(metrics),
        "contributions": {
            worker: {
                "committed": tally.committed,
                "applied": tally.applied,
                "dropped": tally.dropped,
                "pending": tally.pending,
            }
            for worker, tally in sorted(tallies.items())
        },
        "staleness": {
            worker: {str(s): tally.staleness[s] for s in sorted(tally.staleness)}
            for worker, tally in sorted(tallies.items())
        },
        **({"uncounted": said} if (said := _uncounted(coordinator)) else {}),
        **({"kept_back": said} if (said := coordinator.state.kept_back.sentence()) else {}),
        "weights_sha256": sha256,
        **({"tables": found} if (found := [each.to_json() for each in together(tables)]) else {}),
    }


def _uncounted(coordinator: Coordinator) -> str:
    tallies = sorted(coordinator.state.roster.tallies.items())
    return uncounted(
        {name: (each.granted, each.committed, each.applied, each.weight) for name, each in tallies}
    )
