"""summary.json: the configuration and the result of a run."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from psserver.coordinator import Coordinator
from psserver.coordinator.roster import Tally
from psserver.policies.policy import config_of
from psserver.table_figures import TableFigures, together

# Results of a worker from which on its share says something.
LEAST: Final = 8
# A share of dropped contributions from which the end names a worker; a share of the weight of others up to which it
# names a worker; and the most names.
WORTH_NAMING, LIGHT, NAMED = 0.1, 0.1, 8


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
        **({"uncounted": said} if (said := uncounted(tallies)) else {}),
        **({"kept_back": said} if (said := coordinator.state.kept_back.sentence()) else {}),
        "weights_sha256": sha256,
        **({"tables": found} if (found := [each.to_json() for each in together(tables)]) else {}),
    }


def uncounted(tallies: Mapping[str, Tally]) -> str:
    """Return a sentence about workers whose work did not count, or hardly; "" if there is none."""
    found = []
    means = {worker: each.weight / each.applied for worker, each in tallies.items() if each.applied}
    heaviest = max(means, key=means.__getitem__, default="")
    for worker, each in sorted(tallies.items()):
        granted, committed, applied = each.granted, each.committed, each.applied
        lost = committed - applied
        if not applied and (committed or granted >= LEAST):
            what = f"{committed} contributions" if committed else f"{granted} tickets"
            found.append(
                (1.0, f"{worker}: none of its {what} counted, and nothing of its data is in the model")
            )
        elif committed >= LEAST and lost >= WORTH_NAMING * committed:
            found.append((lost / committed, f"{worker}: {lost} of {committed} contributions were dropped"))
        elif applied >= LEAST and means[worker] <= LIGHT * means[heaviest] > 0:
            share = means[worker] / means[heaviest]
            found.append(
                (
                    1 - share,
                    f"{worker}: its {applied} contributions weighed {share:.2g} of those of {heaviest}",
                )
            )
    found.sort(key=lambda each: -each[0])
    said = [sentence for _, sentence in found[:NAMED]]
    return "; ".join([*said, f"and {len(found) - NAMED} more workers"] if len(found) > NAMED else said)
