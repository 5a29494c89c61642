"""``ps-lab dashboard``"""

import socket
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, trust_option
from pslab.commands.observing import observer_credentials
from pslab.dashboard import sources
from pslab.dashboard.access import is_loopback
from pslab.dashboard.serve import PORT, ServeError, check_installed, link, listening, serve, token_for
from pslab.launch.status_client import StatusError
from pslab.runs.folder import RunError
from pswire.addresses import AddressError
from pswire.command.options import insecure_option, security_options
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from pswire.security.authority import described
from pswire.security.settings import SecurityOptions


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[HOST:PORT | RUN | EXPERIMENT]", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: a free one.")
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. Off loopback the printed link has a token, and nobody without it sees anything; it "
    "needs TLS (--tls-ca, --tls-cert, --tls-key) or --insecure.",
)
@insecure_option
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of EXPERIMENT: policy.name=async. Repeatable.",
)
@trust_option
@security_options
def dashboard(
    target: str | None,
    port: int,
    bind: str,
    overrides: tuple[str, ...],
    trust: bool,
    security: SecurityOptions,
) -> None:
    """Serve a page that shows a cluster, a run or a simulated experiment, and a playground beside it.

    \b
    HOST:PORT   a live cluster; the server with task index 0
    RUN         a run folder: live while the run goes on, then with a slider for the time
    EXPERIMENT  an experiment file, simulated (what its [simulation] says; a [job] is left out)
    nothing     the playground alone

    Who waits, why and for whom; a lane for each worker; loss, staleness, rates, servers and the decision log. It is
    a process beside the servers: however many look at the page, the coordinator is asked twice a second, and
    not at all while nobody looks. Ctrl-C ends it.
    """
    credentials = observer_credentials(security)
    encrypted = credentials.encrypted and bool(credentials.identity.cert) and not is_loopback(bind)
    if not (is_loopback(bind) or encrypted or credentials.insecure):
        raise Failure(
            f"--bind {bind}: other machines reach this address, and whoever sees the network sees the page and its "
            "token: expected --tls-ca, --tls-cert and --tls-key, or --insecure"
        )
    hosts: tuple[str, ...] = ()
    if encrypted:
        hosts = described(credentials.identity.cert).hosts
        if not hosts:
            raise Failure(
                f"--bind {bind}: the certificate is a client's, which no browser believes: expected one for this host, "
                "as ps-lab certs DIR --page HOST makes it",
                ExitCode.UNTRUSTED,
            )
    asking = credentials
    if target is not None and sources.live_address(Path(target)):
        # A run that goes on may have certificates of its own; the page is not served with them.
        asking = observer_credentials(security, Path(target), trusted=trust)
    try:
        check_installed()
        source = sources.find(target, overrides, asking, trusted=trust)
        sock = listening(bind, port)
    except (RunError, ExperimentError, AddressError) as error:
        raise Failure(error) from error
    except StatusError as error:
        raise Failure(error, error.code) from error
    except ServeError as error:
        taken = ExitCode.ADDRESS_IN_USE if "cannot listen" in str(error) else ExitCode.USAGE
        raise Failure(error, taken) from error
    from pslab.dashboard.app import application

    token = token_for(bind)
    # Of an address that means all interfaces nobody can make a link.
    host = (*hosts, socket.gethostname())[0] if bind in ("0.0.0.0", "::") else bind
    names = frozenset(name.lower() for name in (bind, host, *hosts))
    app = application(source, names=names, token=token)
    # A browser has no certificate: the link's token says who may look.
    context = credentials.identity.server_context(mutual=False) if encrypted else None
    shown = link(sock, host, token, encrypted=encrypted)
    serve(app, sock, lambda: click.echo(f"dashboard: {shown}"), context, source.pool.close)
