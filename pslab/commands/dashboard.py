"""The command ``ps-lab dashboard``."""

import socket
from dataclasses import replace
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.commands.live import observer_credentials
from pslab.dashboard import sources
from pslab.dashboard.access import is_loopback
from pslab.dashboard.serve import PORT, ServeError, check_installed, link, listening, serve, token_for
from pslab.launch.status_client import StatusError
from pslab.runs.folder import RunError
from pswire.addresses import AddressError
from pswire.command.options import insecure_option, security_options
from pswire.exits import ExitCode
from pswire.security.settings import SecurityOptions


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[HOST:PORT | RUN]", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. Off the loopback the page requires the token in the printed link, and the command "
    "requires --insecure: the page has no TLS of its own. For TLS leave it on the loopback, behind an ssh tunnel or a "
    "reverse proxy.",
)
@insecure_option
@security_options
def dashboard(
    target: str | None,
    port: int,
    bind: str,
    security: SecurityOptions,
) -> None:
    """Serve a web page that shows a cluster or a run, with a playground.

    \b
    HOST:PORT   a live cluster; the server with task index 0
    RUN         a run folder: live while the run goes on, afterwards with a time slider
    nothing     the playground alone

    The page shows who waits, why and for whom; the servers; a lane for each worker and the decision log;
    curves of loss, staleness and rates. The dashboard is a process beside the servers: it asks the coordinator twice a
    second, however many people look at the page, and not at all while nobody does. Ctrl-C ends it.
    """
    # It says how the page is reached; the cluster may have TLS all the same.
    insecure, security = security.insecure, replace(security, insecure=False)
    credentials = observer_credentials(security)
    if not (is_loopback(bind) or insecure):
        raise Failure(
            f"--bind {bind}: other machines reach this address, and anybody on the network could read the page and its "
            "token: expected --insecure, or the loopback behind an ssh tunnel or a reverse proxy with TLS"
        )
    if target is not None and sources.live_address(Path(target)):
        # A running run may have certificates of its own.
        credentials = observer_credentials(security, Path(target))
    try:
        check_installed()
        source = sources.find(target, credentials)
        sock = listening(bind, port)
    except (RunError, AddressError) as error:
        raise Failure(error) from error
    except StatusError as error:
        raise Failure(error, error.code) from error
    except ServeError as error:
        taken = ExitCode.ADDRESS_IN_USE if "cannot listen" in str(error) else ExitCode.USAGE
        raise Failure(error, taken) from error
    from pslab.dashboard.app import application

    token = token_for(bind)
    # "All interfaces" is no address to connect to, so the link names a host.
    host = socket.gethostname() if bind in ("0.0.0.0", "::") else bind
    names = frozenset(name.lower() for name in (bind, host))
    app = application(source, names=names, token=token)
    shown = link(sock, host, token)
    serve(app, sock, lambda: click.echo(f"dashboard: {shown}"), source.pool.close)
