"""A learning rate that a worker sets during the job, against the one that the job began with."""

from collections.abc import Mapping


def rate_refusal(optimizer: Mapping[str, object], rate: float | None, aggregator: str) -> str | None:
    """Why a commit that sets this rate is refused; None where it is not, or sets none.

    `aggregator`: of the job's policy. One that tolerates bad workers must not let one of them set the rate for all.
    """
    if rate is None:
        return None
    if aggregator != "mean":
        return (
            f"learning_rate {rate:g} in a commit: under {aggregator}, which tolerates bad workers, no worker sets the "
            "rate for all; expected none: a schedule of the optimizer changes it"
        )
    began = optimizer.get("learning_rate")
    if isinstance(began, Mapping):
        return (
            f"learning_rate {rate:g} in a commit: this job's rate follows the schedule "
            f"{began.get('schedule')!r}, so expected none"
        )
    if not isinstance(began, int | float) or not began > 0:
        return (
            f"learning_rate {rate:g} in a commit: the job began with {began}, which no factor makes another; "
            "expected none"
        )
    return None


def present_rate(optimizer: Mapping[str, object], scale: float, aggregator: str) -> float | None:
    """The job's rate, `scale` times the one that it began with; None where no commit may set another."""
    refused = rate_refusal(optimizer, 1.0, aggregator) is not None
    return None if refused else began_with(optimizer) * scale


def began_with(optimizer: Mapping[str, object]) -> float:
    """The rate of entry 0 of the log, a number above 0: `rate_refusal` has seen to that."""
    began = optimizer["learning_rate"]
    assert isinstance(began, int | float)
    return float(began)
