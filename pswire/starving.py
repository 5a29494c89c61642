"""Work that does not count: when to say so while a job runs, and what to say at its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Results of one worker in a row that came to nothing, before a warning.
STARVED: Final = 8
# A share of dropped contributions from which the end names a worker; a share of the weight of others up to which it
# names a worker; and the most names.
WORTH_NAMING, LIGHT, NAMED = 0.1, 0.1, 8
# How a policy's reason ends for the cancel of a ticket whose update was made by others.
LATE: Final = "was made without it"
# A policy's reason for a drop for age.
STALE: Final = "stale"
# What lets a policy take older results, by the name of its knob.
_REMEDIES: Final = {
    "max_staleness": "raise",
    "threshold": "raise",
    "backup": "lower",
    "aggregate": "raise",
}


@dataclass(slots=True)
class Streak:
    """What came of one worker's tickets. `void`: late in a row; `newest`: the last ticket that was counted."""

    applied: int = 0
    late: int = 0
    void: int = 0
    newest: int = 0
    told: bool = False

    def counts(self) -> None:
        """Note a contribution that was applied."""
        self.applied, self.void = self.applied + 1, 0

    def came_late(self, ticket: int) -> bool:
        """Note a ticket that came to nothing because it was too late. Return whether to warn: once."""
        if ticket <= self.newest:
            return False
        self.newest, self.late, self.void = ticket, self.late + 1, self.void + 1
        if self.told or self.void < STARVED:
            return False
        self.told = True
        return True


def starving(worker: str, policy: Mapping[str, object]) -> str:
    """Return the warning about a worker that `STARVED` tickets in a row came too late. `policy`: name and knobs."""
    knobs = ", ".join(f"{name} = {value}" for name, value in policy.items() if name != "name")
    given = f" with {knobs}" if knobs else ""
    remedy = next((f"{verb} {knob}" for knob, verb in _REMEDIES.items() if knob in policy), "")
    return (
        f"{worker} starves: its last {STARVED} results were all too old for the policy, {policy.get('name', '?')}"
        f"{given}, and did not count. The model does not learn from this worker's data. "
        f"{remedy.capitalize() + ', or take' if remedy else 'Take'} a policy that waits for slow workers (sync, ssp) "
        "or takes whatever comes (async): `ps-lab policy` changes it while the job runs"
    )


def too_few(policy: Mapping[str, object], fewest: int) -> str:
    """Return the warning about an update that was not made for want of contributions."""
    return (
        f"an update under the policy {policy.get('name', '?')} needs {fewest} contributions, and fewer workers are at "
        "work: their contributions are dropped, and nothing is learned from them. Start more workers, or take a policy "
        "that needs fewer: `ps-lab policy` changes it while the job runs"
    )


def uncounted(tallies: Mapping[str, tuple[int, int, int, float]]) -> str:
    """Return a sentence about workers whose work did not count, or hardly; "" if there is none.

    `tallies`: of each worker, the tickets that it was granted, its commits, those that were applied, and the sum of
    the weights with which they were.
    """
    found = []
    means = {worker: weight / applied for worker, (_, _, applied, weight) in tallies.items() if applied}
    heaviest = max(means, key=means.__getitem__, default="")
    for worker, (granted, committed, applied, _) in tallies.items():
        lost = committed - applied
        if not applied and (committed or granted >= STARVED):
            what = f"{committed} contributions" if committed else f"{granted} tickets"
            found.append(
                (1.0, f"{worker}: none of its {what} counted, and nothing of its data is in the model")
            )
        elif committed >= STARVED and lost >= WORTH_NAMING * committed:
            found.append((lost / committed, f"{worker}: {lost} of {committed} contributions were dropped"))
        elif applied >= STARVED and means[worker] <= LIGHT * means[heaviest] > 0:
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
