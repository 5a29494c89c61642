"""Means of order statistics: how long the k-th of n independent, identically distributed step times is.

Formulas: David and Nagaraja, Order Statistics (2003), sections 3.1 and 4.6; as used by Dutta et al. 2018, section 3.
"""

import math
from collections.abc import Callable

from pswire.config.distributions import Delay


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n."""
    return math.fsum(1 / k for k in range(1, n + 1))


def mean_of_kth(delay: Delay, k: int, n: int) -> float:
    """E[X_(k:n)] in seconds, k = 1 the shortest. NaN for a distribution without a closed form (gamma, log-normal,
    trace), infinite where there is no mean. Raises ValueError unless 1 <= k <= n."""
    if not 1 <= k <= n:
        raise ValueError(f"expected 1 <= k <= n, got k = {k} and n = {n}")
    found = _FORMULAS.get(delay.name)
    return delay.factor * found(delay.parameters, k, n) if found is not None else math.nan


def formula(delay: Delay, k: str, n: str) -> str:
    """The formula that `mean_of_kth` computes, in words for a report."""
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
