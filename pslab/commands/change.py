"""``ps-lab policy``: change the policy of a running job."""

import json
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure, trust_option
from pslab.commands.live import status_client
from pslab.launch.status_client import StatusError
from pswire.command.options import security_options
from pswire.config.toml import OverrideError, apply_overrides
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions


@click.command("policy", epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--to", metavar="NAME", help="A built-in policy. Without it, knobs of the present one change.")
@click.option(
    "--set", "overrides", multiple=True, metavar="policy.KNOB=VALUE", help="Set a knob. Repeatable."
)
@click.option("--why", default="", metavar="TEXT", help="A reason, for the decision log.")
@trust_option
@security_options
def policy(
    target: str, to: str | None, overrides: tuple[str, ...], why: str, trust: bool, security: SecurityOptions
) -> None:
    """Change the policy of a running job.

    HOST:PORT is the server with task index 0, RUN the folder of a running run. The new policy takes over as
    soon as no contribution waits for an update, and judges tickets that are open by then. The decision log
    has the change. To undo it, change the policy back. Parts that shards and workers have from the start
    cannot change: aggregators, compensators, local rules, the weight by samples. Under TLS this requires an
    admin's certificate or token.

    \b
      ps-lab policy runs/digits --to bounded --set policy.max_staleness=2 --why "stragglers"
      ps-lab policy runs/digits --set policy.max_staleness=8
    """
    given = _knobs(overrides)
    if to is None and not given:
        raise click.UsageError("expected --to NAME, or --set policy.KNOB=VALUE for the present policy")
    client = status_client(target, security, trusted=trust, role=Role.ADMIN)
    try:
        if to is None:
            status = client.ask()
            to, given = status.policy, {**json.loads(status.policy_knobs), **given}
        effect = client.change_policy(to, given, why)
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()
    click.echo(effect)


def _knobs(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the knobs that the overrides set. Raises click.UsageError for a key of another section."""
    document: dict[str, Any] = {}
    try:
        apply_overrides(document, overrides)
    except OverrideError as error:
        raise click.UsageError(str(error)) from error
    if others := sorted(document.keys() - {"policy"}):
        raise click.UsageError(
            f"--set {others[0]}: only keys of policy change here, for example policy.slack=2"
        )
    knobs: dict[str, Any] = document.get("policy", {})
    if "name" in knobs:
        raise click.UsageError("--set policy.name: expected the name as --to NAME")
    return knobs
