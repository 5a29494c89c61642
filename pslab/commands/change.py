"""Commands that change a running job: ``ps-lab policy`` and ``promote``."""

import json
from collections.abc import Sequence
from typing import Any

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.commands.live import job_in, observer_credentials, servers_of, status_client
from pslab.launch.status_client import ChangeRefused, StatusClient, StatusError
from pswire.command.options import security_options
from pswire.config.toml import OverrideError, apply_overrides
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions


@click.command("policy", epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--to", default="", metavar="NAME", help="A built-in policy; default: the present one.")
@click.option(
    "--set", "overrides", multiple=True, metavar="policy.KNOB=VALUE", help="Set a knob. Repeatable."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="FACTOR",
    help="Multiply the job's learning rate from then on; 0: leave it as it is.",
)
@click.option("--why", default="", metavar="TEXT", help="A reason, for the decision log.")
@security_options
def policy(
    target: str,
    to: str,
    overrides: tuple[str, ...],
    rate: float,
    why: str,
    security: SecurityOptions,
) -> None:
    """Change the policy of a running job.

    HOST:PORT is the server with task index 0, or any server of a job with replicas; RUN is the folder of a
    running run. The new policy takes over as
    soon as no contribution waits for an update, and judges tickets that are open by then. The decision log
    has the change. To undo it, change the policy back. Parts that shards and workers have from the start
    cannot change: aggregators, compensators, local rules, the weight by samples. Under TLS this requires an
    admin's certificate; without it the job's secret, if it has one, from the run folder or
    PS_JOB_SECRET.

    An update of more contributions is a larger batch: --rate 2 doubles the job's learning rate with the change.

    \b
      ps-lab policy runs/digits --to bounded --set policy.max_staleness=2 --why "stragglers"
      ps-lab policy runs/digits --set policy.max_staleness=8
    """
    knobs = _knobs(to, overrides)
    client = status_client(target, security, role=Role.ADMIN)
    try:
        if not to:
            status = client.ask()
            to, knobs = status.policy, {**json.loads(status.policy_knobs), **knobs}
        click.echo(client.change_policy(to, knobs, why, rate))
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()


def _knobs(to: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the knobs that the overrides set. Raises UsageError if they are those of no change of a policy."""
    what = "--to, --set: expected the name of a policy, or policy.KNOB=VALUE for the present one"
    document: dict[str, Any] = {}
    try:
        apply_overrides(document, overrides)
    except OverrideError as error:
        raise click.UsageError(f"--to, --set: {error}") from error
    if others := sorted(document.keys() - {"policy"}):
        raise click.UsageError(
            f"--to, --set: {others[0]}: only keys of policy change here, for example policy.slack=2"
        )
    knobs = document.get("policy", {})
    if not isinstance(knobs, dict) or "name" in knobs:
        raise click.UsageError(f"policy.name: {what}")
    if not (to or knobs):
        raise click.UsageError(f"{what}, got neither")
    return knobs


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--yes", is_flag=True, help="Do not ask whether the other server is dead.")
@security_options
def promote(target: str, yes: bool, security: SecurityOptions) -> None:
    """Have one of two servers go on alone.

    A job with replicas on two servers waits when one of them is lost, because neither may decide alone: the other
    one could be going on, where only the connection is broken. This command is your vote that it is dead. HOST:PORT is
    the server that is left; RUN is the run's folder, whose servers are asked. A server that answers the other one, or
    whose copy is not in sync, refuses.

    Never promote both servers, one after the other: what the first one took alone is lost then. A server that comes
    back later, with its command of before, gets a copy. Jobs on three servers and more need no such vote. Under TLS
    this requires an admin's certificate; without it the job's secret, if it has one, from the run folder or
    PS_JOB_SECRET.
    """
    hosts, folder = servers_of(target)
    credentials = observer_credentials(security, folder, role=Role.ADMIN)
    if not yes:
        click.confirm("Is the other server dead, and sure not to go on?", abort=True)
    failure: StatusError | None = None
    for address in hosts:
        client = StatusClient(str(address), credentials=credentials, job=job_in(folder))
        try:
            epoch = client.promote()
            click.echo(
                f"{address} goes on alone, in term {epoch}: start the other server again to have two copies"
            )
            return
        except ChangeRefused as error:
            raise Failure(error, error.code) from error
        except StatusError as error:
            failure = error
        finally:
            client.close()
    assert failure is not None
    raise Failure(failure, failure.code)
