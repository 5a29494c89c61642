"""What must be the same on all servers of a job with replicas."""

import json
from typing import Any, Final

from psserver.service.job.job import Job
from psserver.service.life.settings import ServerSettings

# Terms that the first primary of a generation names.
OWN: Final = ("job", "generation", "regather")


class OtherSettingsError(Exception):
    """This server was started with other options than the primary."""


def described(settings: ServerSettings) -> str:
    """Return what must be the same on all servers, as text."""
    terms, policy = settings.terms, settings.policy
    shown = {name: getattr(terms, name) for name in terms.__match_args__ if name not in OWN}
    return json.dumps({"terms": shown, "policy": [policy.name, policy.knobs]}, default=str, sort_keys=True)


def named(job: Job) -> dict[str, Any]:
    """Return what a copy needs of the job to make its own, beside `described`."""
    terms = {name: getattr(job.terms, name) for name in OWN}
    return {**terms, "secret": job.host.secret.hex(), "began": job.began}


def check_same(settings: ServerSettings, others: str) -> None:
    """Raise OtherSettingsError unless `described` gives `others`."""
    own = described(settings)
    if own != others:
        raise OtherSettingsError(
            f"expected the options of the primary, {others}, got {own}: start all servers of a job with replicas with "
            "the same options"
        )
