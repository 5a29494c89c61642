"""A change of a running job's policy, as the command and the dashboard ask for it."""

import json
from collections.abc import Sequence
from typing import Any

from pslab.launch.status_client import StatusClient
from pswire.config.toml import OverrideError, apply_overrides

WHAT = "expected the name of a policy, or policy.KNOB=VALUE for the present one"


class ChangeError(ValueError):
    """A request that is not a change of policy."""


def check_change(to: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the knobs that the overrides set. Raises ChangeError if they are those of no change of a policy."""
    document: dict[str, Any] = {}
    try:
        apply_overrides(document, overrides)
    except OverrideError as error:
        raise ChangeError(str(error)) from error
    if others := sorted(document.keys() - {"policy"}):
        raise ChangeError(f"{others[0]}: only keys of policy change here, for example policy.slack=2")
    knobs = document.get("policy", {})
    if not isinstance(knobs, dict) or "name" in knobs:
        raise ChangeError(f"policy.name: {WHAT}")
    if not (to or knobs):
        raise ChangeError(f"{WHAT}, got neither")
    return knobs


def change_policy(
    client: StatusClient, to: str, overrides: Sequence[str], why: str, rate: float = 0.0
) -> str:
    """Have policy `to` take over, or, if that is empty, change knobs of the present one. Return the effect.

    `rate`: factor of the job's learning rate from then on; 0: as it is. Raises ChangeError and StatusError.
    """
    knobs = check_change(to, overrides)
    if not to:
        status = client.ask()
        to, knobs = status.policy, {**json.loads(status.policy_knobs), **knobs}
    return client.change_policy(to, knobs, why, rate)
