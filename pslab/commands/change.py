"""Commands that change a running job: ``ps-lab policy`` and ``promote``."""

import click

from pslab.commands.failure import EPILOG, Failure, trust_option
from pslab.commands.live import job_in, observer_credentials, servers_of, status_client
from pslab.launch.policy_change import ChangeError, change_policy, check_change
from pslab.launch.status_client import ChangeRefused, StatusClient, StatusError
from pswire.command.options import security_options
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
@trust_option
@security_options
def policy(
    target: str,
    to: str,
    overrides: tuple[str, ...],
    rate: float,
    why: str,
    trust: bool,
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
    try:
        check_change(to, overrides)
    except ChangeError as error:
        raise click.UsageError(f"--to, --set: {error}") from error
    client = status_client(target, security, trusted=trust, role=Role.ADMIN)
    try:
        click.echo(change_policy(client, to, overrides, why, rate))
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--yes", is_flag=True, help="Do not ask whether the other server is dead.")
@trust_option
@security_options
def promote(target: str, yes: bool, trust: bool, security: SecurityOptions) -> None:
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
    credentials = observer_credentials(security, folder, trusted=trust, role=Role.ADMIN)
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
