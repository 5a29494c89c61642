"""``ps-lab dashboard``"""

import click

from pslab.commands.failure import EPILOG, Failure
from pslab.dashboard import sources
from pslab.dashboard.serve import PORT, ServeError, check_installed, link, listening, serve, token_for
from pslab.launch.status_poll import StatusError
from pslab.runs.folder import RunError
from pswire.addresses import AddressError
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode


@click.command(epilog=EPILOG)
@click.argument("target", metavar="[HOST:PORT | RUN | EXPERIMENT]", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: a free one.")
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Interface to listen on. Off loopback the printed link has a token, and nobody without it sees anything.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of EXPERIMENT: policy.name=async. Repeatable.",
)
def dashboard(target: str | None, port: int, bind: str, overrides: tuple[str, ...]) -> None:
    """Serve a page that shows a cluster, a run or a simulated experiment, and a playground beside it.

    \b
    HOST:PORT   a live cluster; the server with task index 0
    RUN         a run folder, with a slider for the time
    EXPERIMENT  an experiment file, simulated (what its [simulation] says; a [job] is left out)
    nothing     the playground alone

    Who waits, why and for whom; a lane for each worker; loss, staleness, rates, servers and the decision log. It is
    a process beside the servers: however many look at the page, the coordinator is asked twice a second, and
    not at all while nobody looks. Ctrl-C ends it.
    """
    try:
        check_installed()
        source = sources.find(target, overrides)
        sock = listening(bind, port)
    except (RunError, ExperimentError, AddressError) as error:
        raise Failure(error) from error
    except StatusError as error:
        raise Failure(error, ExitCode.UNREACHABLE) from error
    except ServeError as error:
        taken = ExitCode.ADDRESS_IN_USE if "cannot listen" in str(error) else ExitCode.USAGE
        raise Failure(error, taken) from error
    from pslab.dashboard.app import application

    token = token_for(bind)
    app = application(source, names=frozenset({bind.lower()}), token=token)
    serve(app, sock, lambda: click.echo(f"dashboard: {link(sock, bind, token)}"))
