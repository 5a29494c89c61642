"""Formulas with their sources: order statistics, staleness and seconds per version of each policy, bounds on the error.

Order statistics: the mean of the k-th of n independent, identically distributed step times. David and Nagaraja, Order
Statistics (2003), sections 3.1 and 4.6; as used by Dutta et al. 2018, section 3.

Staleness: for workers that ask again as soon as they have committed. Every update ages every other held version by one,
and a pull renews it. So after T updates the sum of all staleness and of the ages in flight is (n - w) T, where w
workers hold only committed contributions. It holds for any speeds; `pslab.check.conservation` verifies it on a log, in
integers. A policy's size and free workers are in its `Facts`.

Seconds per version: of a simulated cluster, for the policies and step times that theory covers. Dutta et al. 2018,
"Slow and stale gradients can win the race", section 3. A formula is a theorem about one named algorithm, so policies
are recognised by their names; no code is shared with them. Assumptions: messages take no time, cancelled work stops at
once, no worker fails.

Bounds: on the distance of SGD from the optimum, and on the learning rate. Symbols: eta the learning rate; c and
L the least and the largest curvature (strong convexity, smoothness); sigma^2 = E|noise|^2 of one gradient; K gradients
are averaged in an update; T the largest staleness; v the number of updates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pslab.experiment import Experiment
from pslab.sections import LinksSection
from psserver.policies import Facts, PolicyError, facts
from pswire.config.distributions import Delay, parse


def harmonic(n: int) -> float:
    """Return 1 + 1/2 + ... + 1/n."""
    return math.fsum(1 / k for k in range(1, n + 1))


def mean_of_kth(delay: Delay, k: int, n: int) -> float:
    """Return E[X_(k:n)] in seconds, where k = 1 is the shortest.

    NaN for a distribution without a closed form (gamma, log-normal, trace), infinity if there is no mean. Raises
    ValueError unless 1 <= k <= n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"expected 1 <= k <= n, got k = {k} and n = {n}")
    found = _FORMULAS.get(delay.name)
    return delay.factor * found(delay.parameters, k, n) if found is not None else math.nan


def formula(delay: Delay, k: str, n: str) -> str:
    """Return the formula of `mean_of_kth` as text for a report."""
    spread = f"H_{n}" if k == n else f"(H_{n} - H_({n}-{k}))"
    left = "1" if k == n else f"{n}-{k}+1"
    texts = {
        "constant": "c",
        "exponential": f"m {spread}",
        "shifted_exponential": f"s + m {spread}",
        "uniform": f"low + (high - low) {k} / ({n} + 1)",
        "pareto": f"min G({n}+1) G({left}-1/a) / (G({left}) G({n}+1-1/a))",
    }
    return f"E[X_({k}:{n})] = {texts[delay.name]}"


def _exponential(mean: float, k: int, n: int) -> float:
    return mean * (harmonic(n) - harmonic(n - k))


def _pareto(alpha: float, minimum: float, k: int, n: int) -> float:
    if alpha * (n - k + 1) <= 1:
        return math.inf
    logs = (math.lgamma(n + 1), math.lgamma(n - k + 1 - 1 / alpha))
    below = (math.lgamma(n - k + 1), math.lgamma(n + 1 - 1 / alpha))
    return minimum * math.exp(sum(logs) - sum(below))


_FORMULAS: dict[str, Callable[[tuple[float, ...], int, int], float]] = {
    "constant": lambda p, k, n: p[0],
    "exponential": lambda p, k, n: _exponential(p[0], k, n),
    "shifted_exponential": lambda p, k, n: p[0] + _exponential(p[1], k, n),
    "uniform": lambda p, k, n: p[0] + (p[1] - p[0]) * k / (n + 1),
    "pareto": lambda p, k, n: _pareto(p[0], p[1], k, n),
}


LAW = "conservation of staleness; Dutta et al. 2018 for the setting"


def facts_of(policy: Mapping[str, Any], workers: int) -> Facts | None:
    """Return the facts of the policy that a summary names; None for a user's own, and for knobs of another release."""
    knobs = {key: value for key, value in policy.items() if key != "name"}
    try:
        return facts(str(policy.get("name")), knobs, workers)
    except PolicyError:
        # The run was made by a release in which the policy had other knobs.
        return None


def buffered(policy: Mapping[str, Any], workers: int) -> int | None:
    """Return K for a policy without waits and drops whose tickets have one batch; None for other policies."""
    known = facts_of(policy, workers)
    return known.size if known is not None and known.free == 1 and known.batches == 1 else None


def mean_staleness(policy: Mapping[str, Any], workers: int) -> tuple[float, str] | None:
    """Return (versions, formula); None if there is no law for this policy and number of workers."""
    known = facts_of(policy, workers)
    if known is None or known.free is None or known.size is None:
        return None
    free = "1" if known.free == 1 else "K"
    formula = f"n - {free}" if known.size == 1 else f"(n - {free}) / K"
    return (workers - known.free) / known.size, formula


def max_staleness(policy: Mapping[str, Any], workers: int) -> tuple[int, str] | None:
    """Return (versions, formula) of the largest staleness that is applied; None if the policy has no bound."""
    known = facts_of(policy, workers)
    if known is None or known.max_staleness is None:
        return None
    return known.max_staleness, known.limit


DUTTA = "Dutta et al. 2018"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected seconds per version. `upper`: an upper bound, not an equality."""

    seconds: float
    formula: str
    source: str
    upper: bool = False


def applies(experiment: Experiment) -> bool:
    """Return True if only steps take time, and there are no faults."""
    faults = experiment.faults
    faultless = not (faults.crashes or faults.leaves or faults.joins or faults.disconnects)
    return faultless and not faults.loss and experiment.links == LinksSection()


def seconds_per_version(experiment: Experiment, policy: Mapping[str, Any]) -> Expected | None:
    """Return the expected seconds per version, or None without a formula. Raises DelayError for a bad trace file.

    `policy`: name and every knob.
    """
    if not applies(experiment):
        return None
    times = [_step(experiment, number) for number in range(experiment.cluster.workers)]
    together = buffered(policy, len(times))
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
    """Return the distribution of a worker's step time, without its text; None if it is a sum of two."""
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
    """Return the time without waits: each worker commits once per mean step time, whatever the distribution."""
    if any(time is None for time in times):
        return None
    means = [time.mean for time in times if time is not None]
    if not all(0 < mean < math.inf for mean in means):
        return None
    text = ("1" if together == 1 else "K") + " / sum of 1 / E[X_i]"
    return Expected(together / math.fsum(1 / mean for mean in means), text, f"{DUTTA}, lemma 4")


def _slowest(steps: Sequence[Delay]) -> Expected | None:
    """Return the time under slack, which does not help against a constantly slow worker: all have its pace."""
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


SYNC = "eta L sigma^2 / (2 c K) + (1 - eta c)^v (gap_0 - eta L sigma^2 / (2 c K))"
SYNC_SOURCE = "Bottou, Curtis, Nocedal 2018, theorem 4.6"
DELAYED = "2 gap_0 / (eta v) + (eta L + 2 eta^2 L^2 T) sigma^2 / K"
DELAYED_SOURCE = "Lian et al. 2015, theorem 1"
STABLE = "2 sin(pi / (2 (2 T + 1))) / L"
STABLE_SOURCE = "Levin and May 1976, for x <- x - a x_(t-T)"


def sync_applies(rate: float, smooth: float) -> bool:
    """Return whether `sync_gap` applies: eta <= 1 / L (theorem 4.6 with mu = 1 and M_G = 1)."""
    return 0 < rate * smooth <= 1


def sync_gap(
    version: int, *, gap: float, rate: float, convex: float, smooth: float, variance: float, parts: int
) -> float:
    """Return an upper bound of E f(x_v) - f(x*) for staleness 0 and unbiased gradients; `gap`: f(x_0) - f(x*).

    Bottou, Curtis and Nocedal 2018, "Optimization methods for large-scale machine learning", theorem 4.6, with
    mu = mu_G = 1 and M = sigma^2 / K. It is sharp up to a factor if all curvatures are equal.
    """
    floor = rate * smooth * variance / (2 * convex * parts)
    return floor + (1 - rate * convex) ** version * (gap - floor)


def delayed_applies(rate: float, smooth: float, staleness: int) -> bool:
    """Return whether `delayed_gradient` applies: eta L + 2 (eta L T)^2 <= 1."""
    step = rate * smooth
    return step > 0 and step + 2 * (step * staleness) ** 2 <= 1


def delayed_gradient(
    version: int, *, gap: float, rate: float, smooth: float, variance: float, parts: int, staleness: int
) -> float:
    """Return an upper bound of the mean of E|grad f(x_i)|^2 over i = 0 .. v - 1, for any staleness up to T.

    Lian, Huang, Li and Liu 2015, "Asynchronous parallel stochastic gradient for nonconvex optimization", theorem 1 with
    a constant step and consistent reads. f need not be convex. The delays must not depend on the noise, which holds if
    they come from step times only.
    """
    noise = (rate * smooth + 2 * (rate * smooth) ** 2 * staleness) * variance / parts
    return 2 * gap / (rate * version) + noise


def stable_rate(staleness: int, smooth: float) -> float:
    """Return the learning rate at which gradient descent with this constant staleness begins to diverge.

    It is about pi / ((2 T + 1) L); for T = 0 it is the well-known 2 / L. Levin and May 1976, "A note on
    difference-delay equations": x <- x - a x_(t-T) is stable exactly if a < 2 sin(pi / (2 (2 T + 1))).
    """
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / smooth
