"""``ps-lab status``, ``watch`` and ``note``"""

import time
from collections.abc import Callable, Iterator

import click
from rich.live import Live

from pslab.commands.failure import EPILOG, Failure, console, trust_option
from pslab.commands.observing import status_client
from pslab.display.progress import print_json
from pslab.display.status import SampleRate, status_json, status_line, status_view
from pslab.launch.status_client import INTERVAL, StatusError
from pslab.observe.watch import History, watch_view
from pswire.command.options import security_options
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from pswire.v1 import coordinator_pb2 as pb


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--json", "as_json", is_flag=True, help="The whole status as one JSON object.")
@click.option("--watch", is_flag=True, help="Ask again and again until the server is gone, or Ctrl-C.")
@trust_option
@security_options
def status(target: str, as_json: bool, watch: bool, trust: bool, security: SecurityOptions) -> None:
    """What a cluster is doing, and why each waiting worker waits.

    HOST:PORT is the server with task index 0, RUN the folder of a run that goes on. For every
    waiting worker there is a sentence that says what would release it and since when it waits.
    """
    client = status_client(target, security, trusted=trust)
    try:
        first = client.ask()
        if watch:
            _watch(_statuses(first, client.ask), as_json)
        elif as_json:
            print_json(status_json(first))
        else:
            console().print(status_view(first))
    except StatusError as error:
        raise Failure(error, error.code) from error
    finally:
        client.close()


def _statuses(first: pb.StatusReply, ask: Callable[[], pb.StatusReply]) -> Iterator[pb.StatusReply]:
    """The status now and again, until nobody answers any more."""
    reply = first
    while True:
        yield reply
        time.sleep(INTERVAL)
        try:
            reply = ask()
        except StatusError as error:
            click.echo(f"the server is gone: {error}", err=True)
            return


def _watch(statuses: Iterator[pb.StatusReply], as_json: bool) -> None:
    if as_json:
        for reply in statuses:
            print_json(status_json(reply))
        return
    rate = SampleRate()
    with Live(console=console(), auto_refresh=False) as live:
        for reply in statuses:
            rate.add(time.monotonic(), reply.samples)
            live.update(status_view(reply, rate.rate), refresh=True)


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
