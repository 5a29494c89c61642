"""Which policy may take over from another one while the job runs."""

from collections.abc import Mapping
from typing import Final

from psserver.policies.decisions import PolicyError
from psserver.policies.loading import build, facts, names
from psserver.policies.policy import Policy
from pswire.nearest import did_you_mean

# An update of a policy that takes over may need so many contributions of each worker: far more than any rule wants, and
# so few that a mistyped number does not stop the job.
MOST_EACH: Final = 1000


def check_reach(policy: Policy, workers: int, present: int) -> None:
    """Raise PolicyError if `policy` would make no update with the workers that are present, or none for very long.

    `workers`: the number that the job started with.
    """
    known = facts(policy.name, policy.knobs, workers)
    if known is None:
        return
    if known.fewest > present:
        raise PolicyError(
            f"policy {policy.name} needs contributions of {known.fewest} workers for an update, and {present} take "
            "part: expected a policy that can make an update of these"
        )
    most = MOST_EACH * max(1, present)
    if known.size is not None and known.size > most:
        raise PolicyError(
            f"policy {policy.name} needs {known.size} contributions for an update, which is "
            f"{known.size // max(1, present)} of each of the {present} workers: expected at most {MOST_EACH} of each, "
            f"{most} in all"
        )


def successor(former: Policy, name: str, knobs: Mapping[str, object], workers: int, servers: int) -> Policy:
    """Build the built-in policy `name`, which is to take over from `former`.

    Raises PolicyError for an unknown policy or knob, and for a policy that cannot take over, with those that can.
    """
    if ":" in name:
        raise PolicyError(f"policy {name} is code: expected a built-in policy, for a job that runs already")
    if name not in names():
        raise PolicyError(f"expected a built-in policy, got {name!r}{did_you_mean(name, names())}")
    policy = build(name, knobs, workers, servers)
    try:
        policy.check_succession(former)
    except PolicyError as error:
        able = successors(former, workers, servers)
        instead = f"expected {', '.join(able)}" if able else "no other can, either"
        raise PolicyError(
            f"{error}; {instead}, or continue from a checkpoint's weights as another job"
        ) from error
    return policy


def successors(former: Policy, workers: int, servers: int) -> list[str]:
    """Return the built-in policies that can take over from `former`, with their default knobs."""
    found = []
    for name in names():
        try:
            build(name, {}, workers, servers).check_succession(former)
        except PolicyError:
            continue
        found.append(name)
    return found
