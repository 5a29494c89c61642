"""Expected seconds per version of a simulated cluster, for the policies and step times that theory covers.

All of it is Dutta et al. 2018, "Slow and stale gradients can win the race", section 3, and order
statistics. A formula is a theorem about one named algorithm, so this module knows policies by their
names, as the page of a paper does; it shares no code with them. Messages take no time,
cancelled work stops at once, nobody fails.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pslab.theory import ages
from pslab.theory.order import formula, mean_of_kth
from pswire.config.distributions import Delay, parse
from pswire.config.experiment import Experiment
from pswire.config.sections import LinksSection

DUTTA = "Dutta et al. 2018"


@dataclass(frozen=True, slots=True)
class Expected:
    """`upper`: an upper bound, no equality."""

    seconds: float
    formula: str
    source: str
    upper: bool = False


def applies(experiment: Experiment) -> bool:
    """Nothing takes time but steps, and nothing goes wrong."""
    faults = experiment.faults
    faultless = not (faults.crashes or faults.leaves or faults.joins or faults.disconnects)
    return faultless and not faults.loss and experiment.links == LinksSection()


def seconds_per_version(experiment: Experiment, policy: Mapping[str, Any]) -> Expected | None:
    """None: no formula. `policy` with every knob. Raises DelayError for a bad trace file."""
    if not applies(experiment):
        return None
    times = [_step(experiment, number) for number in range(experiment.cluster.workers)]
    together = ages.buffered(policy, len(times))
    if together is not None:
        return _renewal(times, together)
    if any(time is None for time in times):
        return None
    steps = [time for time in times if time is not None]
    if policy["name"] == "ssp":
        return _slowest(steps)
    if any(step != steps[0] for step in steps):
        return _barrier_of_unequal(steps, policy)
    return _ordered(steps[0], len(steps), policy, experiment.simulation.interrupt)


def _step(experiment: Experiment, number: int) -> Delay | None:
    """The time of a worker's step, where it is one distribution and not the sum of two; its text left out."""
    simulation, section = experiment.simulation, experiment.workers.get(number)
    compute = parse(simulation.compute).scaled(simulation.factors.get(number, 1.0))
    delay = parse(section.delay if section is not None else "constant(0)")
    if not delay.never and not compute.never:
        both = compute.name == delay.name == "constant"
        total = compute.factor * compute.parameters[0] + delay.factor * delay.parameters[0] if both else 0.0
        return Delay("", "constant", (total,)) if both else None
    chosen = compute if delay.never else delay
    return Delay("", chosen.name, chosen.parameters, chosen.trace, chosen.factor)


def _renewal(times: Sequence[Delay | None], together: int) -> Expected | None:
    """Nobody waits: each worker commits once per mean step time, whatever the distribution."""
    if any(time is None for time in times):
        return None
    means = [time.mean for time in times if time is not None]
    if not all(0 < mean < math.inf for mean in means):
        return None
    text = ("1" if together == 1 else "K") + " / sum of 1 / E[X_i]"
    return Expected(together / math.fsum(1 / mean for mean in means), text, f"{DUTTA}, lemma 4")


def _slowest(steps: Sequence[Delay]) -> Expected | None:
    """Slack absorbs what comes and goes, not a worker that is always slow: in the long run all keep its pace."""
    if any(step.name != "constant" for step in steps):
        return None
    return Expected(
        max(step.mean for step in steps) / len(steps), "max c_i / n", "the gate of Ho et al. 2013"
    )


def _barrier_of_unequal(steps: Sequence[Delay], policy: Mapping[str, Any]) -> Expected | None:
    plain = policy["name"] == "sync" and not policy["backup"]
    if not plain or any(step.name != "constant" for step in steps):
        return None
    return Expected(max(step.mean for step in steps), "max c_i", "a barrier waits for the slowest")


def _ordered(step: Delay, n: int, policy: Mapping[str, Any], interrupt: bool) -> Expected | None:
    name, k = policy["name"], int(policy.get("aggregate", n))
    upper = False
    if name == "sync":
        k = n - int(policy["backup"])
        if k < n and not interrupt:
            return None
    elif name == "k-sync":
        if policy["late"] != "cancel" or not interrupt:
            return None
    elif name == "k-async":
        # Equal for exponential times, less for those that are longer when new than when used.
        upper = step.name in ("constant", "shifted_exponential", "uniform")
        if step.name != "exponential" and not upper:
            return None
    elif name == "k-batch-sync" and interrupt and step.name == "exponential":
        return Expected(k * step.mean / n, "K E[X] / n", f"{DUTTA}, section 3")
    else:
        return None
    expected = mean_of_kth(step, k, n)
    if not math.isfinite(expected):
        return None
    lemma = "lemma 5" if name == "k-async" else "lemma 1" if k < n else "lemma 1 with K = n"
    letter = "n" if k == n else "K"
    return Expected(expected, formula(step, letter, "n"), f"{DUTTA}, {lemma}", upper)
