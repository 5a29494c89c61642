"""Upper bounds on how far SGD is from the optimum, and how large a learning rate may be.

Symbols: eta the learning rate; c and L the least and the largest curvature (strong convexity, smoothness);
sigma^2 = E|noise|^2 of one gradient; K gradients are averaged in an update; T the largest staleness;
v the number of updates.
"""

import math

SYNC = "eta L sigma^2 / (2 c K) + (1 - eta c)^v (gap_0 - eta L sigma^2 / (2 c K))"
SYNC_SOURCE = "Bottou, Curtis, Nocedal 2018, theorem 4.6"
DELAYED = "2 gap_0 / (eta v) + (eta L + 2 eta^2 L^2 T) sigma^2 / K"
DELAYED_SOURCE = "Lian et al. 2015, theorem 1"
STABLE = "2 sin(pi / (2 (2 T + 1))) / L"
STABLE_SOURCE = "Levin and May 1976, for x <- x - a x_(t-T)"


def sync_applies(rate: float, smooth: float) -> bool:
    """The condition of `sync_gap`: eta <= 1 / L (theorem 4.6 with mu = 1 and M_G = 1)."""
    return 0 < rate * smooth <= 1


def sync_gap(
    version: int, *, gap: float, rate: float, convex: float, smooth: float, variance: float, parts: int
) -> float:
    """At least E f(x_v) - f(x*) for staleness 0 and unbiased gradients; `gap` is f(x_0) - f(x*).

    Bottou, Curtis and Nocedal 2018, "Optimization methods for large-scale
    machine learning", theorem 4.6, with mu = mu_G = 1 and M = sigma^2 / K. It
    is sharp up to a factor where all curvatures are equal.
    """
    floor = rate * smooth * variance / (2 * convex * parts)
    return floor + (1 - rate * convex) ** version * (gap - floor)


def delayed_applies(rate: float, smooth: float, staleness: int) -> bool:
    """The condition of `delayed_gradient`: eta L + 2 (eta L T)^2 <= 1."""
    step = rate * smooth
    return step > 0 and step + 2 * (step * staleness) ** 2 <= 1


def delayed_gradient(
    version: int, *, gap: float, rate: float, smooth: float, variance: float, parts: int, staleness: int
) -> float:
    """At least the mean of E|grad f(x_i)|^2 over i = 0 .. v - 1, whatever the staleness of each part up to T.

    Lian, Huang, Li and Liu 2015, "Asynchronous parallel stochastic gradient
    for nonconvex optimization", theorem 1 with a constant step and consistent
    reads. f need not be convex. The delays must not depend on the noise,
    which is so when they come from step times only.
    """
    noise = (rate * smooth + 2 * (rate * smooth) ** 2 * staleness) * variance / parts
    return 2 * gap / (rate * version) + noise


def stable_rate(staleness: int, smooth: float) -> float:
    """The learning rate from which on gradient descent with this constant staleness diverges: about
    pi / ((2 T + 1) L). For T = 0 it is the well-known 2 / L.

    Levin and May 1976, "A note on difference-delay equations": x <- x - a
    x_(t-T) is stable exactly while a < 2 sin(pi / (2 (2 T + 1))).
    """
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1))) / smooth
