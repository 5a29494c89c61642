"""What must be the same on all servers of a job with replicas."""

import json

from psserver.service.life.settings import ServerSettings


class OtherSettingsError(Exception):
    """This server was started with other options than the primary."""


def described(settings: ServerSettings) -> str:
    """Return what must be the same on all servers, as text."""
    terms, policy = settings.terms, settings.policy
    shown = {name: getattr(terms, name) for name in terms.__match_args__ if name != "job"}
    return json.dumps({"terms": shown, "policy": [policy.name, policy.knobs]}, default=str, sort_keys=True)


def check_same(settings: ServerSettings, others: str) -> None:
    """Raise OtherSettingsError unless `described` gives `others`."""
    own = described(settings)
    if own != others:
        raise OtherSettingsError(
            f"expected the options of the primary, {others}, got {own}: start all servers of a job with replicas with "
            "the same options"
        )
