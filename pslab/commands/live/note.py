"""``ps-lab note``"""

import click

from pslab.commands.failure import EPILOG, Failure, trust_option
from pslab.commands.observing import status_client
from pslab.launch.status_poll import StatusError
from pswire.command.options import security_options
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.argument("text")
@trust_option
@security_options
def note(target: str, text: str, trust: bool, security: SecurityOptions) -> None:
    """Write a remark into the decision log of a job that goes on.

    HOST:PORT is the server with task index 0, RUN the folder of a run that goes on. The log has
    TEXT with its time from then on; the dashboard's log, the server's own log and pictures show it. Under TLS it takes
    an admin's certificate or token.

    \b
      ps-lab note runs/digits "learning rate looks too large"
    """
    client = status_client(target, security, trusted=trust, role=Role.ADMIN)
    try:
        client.note(text)
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()
    click.echo("noted")
