"""``ps-lab watch``"""

import time
from collections.abc import Callable

import click
from rich.live import Live

from pslab.commands.failure import EPILOG, Failure, console, trust_option
from pslab.commands.observing import status_client
from pslab.display.status import SampleRate, status_line
from pslab.launch.status_poll import INTERVAL, StatusError
from pslab.observe.watch import History, watch_view
from pswire.command.options import security_options
from pswire.security.settings import SecurityOptions
from pswire.v1 import coordinator_pb2 as pb


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@trust_option
@security_options
def watch(target: str, trust: bool, security: SecurityOptions) -> None:
    """Watch a cluster on the whole terminal until its server is gone, or Ctrl-C.

    HOST:PORT is the server with task index 0, RUN the folder of a run that goes on. There are curves of the
    last minute (samples, versions, loss, staleness of what was applied), a lane for each worker that shows when it
    computed, waited or was lost, and who waits for whom. Where standard output is no terminal, a line is printed
    every two seconds.
    """
    client = status_client(target, security, trusted=trust)
    try:
        show(client.ask(), client.ask)
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()


def show(first: pb.StatusReply, ask: Callable[[], pb.StatusReply]) -> None:
    """Show the status until `ask` raises StatusError."""
    screen = console()
    with Live(console=screen, auto_refresh=False, screen=screen.is_terminal) as live:
        history, rate, reply, printed = History(), SampleRate(), first, float("-inf")
        try:
            while True:
                now = time.monotonic()
                history.add(now, reply)
                rate.add(now, reply.samples)
                if screen.is_terminal:
                    live.update(watch_view(history, screen.height, screen.width), refresh=True)
                elif now - printed >= 2.0:
                    screen.print(status_line(reply, rate.rate), markup=False)
                    printed = now
                time.sleep(INTERVAL)
                reply = ask()
        except StatusError as error:
            gone = f"the server is gone: {error}"
    screen.print(status_line(reply, rate.rate), markup=False)
    click.echo(gone, err=True)
