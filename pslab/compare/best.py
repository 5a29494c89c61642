"""Each policy with the setting that suits it best: comparing all with one learning rate would be no fair race."""

import math
from collections.abc import Sequence

from pslab.compare.groups import Group
from pslab.compare.measure import Goals
from pslab.runs.folder import RunError


def goal_of(goals: Goals) -> str:
    """The measure that decides who is best. Raises RunError when there is no goal."""
    if goals.accuracy is None and goals.loss is None:
        raise RunError("--best: expected a goal, too: --accuracy X or --loss X")
    return "seconds_to_loss" if goals.accuracy is None else "seconds_to_accuracy"


def best_of_each(groups: Sequence[Group], goals: Goals) -> list[Group]:
    """Of the groups with the same [policy] the one that is first at the goal on average, fastest policy first.

    A group counts only if all of its runs arrived; where none did, the one of which most did. The time is that to
    the accuracy, else to the loss. Raises RunError when there is no goal.
    """
    measure = goal_of(goals)

    def key(group: Group) -> tuple[float, float]:
        found = group.spread(measure)
        missing = 1 - found.count / len(group.runs)
        return missing, math.inf if math.isnan(found.mean) else found.mean

    by_policy: dict[str, list[Group]] = {}
    for group in groups:
        by_policy.setdefault(_policy(group), []).append(group)
    return sorted((min(members, key=key) for members in by_policy.values()), key=key)


def _policy(group: Group) -> str:
    """Its name and knobs. Where workers take steps of their own, their learning rate is a knob: it is a setting."""
    knobs = group.runs[0].run.summary.policy
    return repr(sorted((key, value) for key, value in knobs.items() if key != "learning_rate"))
