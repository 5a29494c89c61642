"""``ps-lab status``"""

import time
from collections.abc import Callable, Iterator

import click
from rich.live import Live

from pslab.commands.failure import EPILOG, Failure, console, trust_option
from pslab.commands.observing import status_client
from pslab.display.progress import print_json
from pslab.display.status import SampleRate, status_json, status_view
from pslab.launch.status_poll import INTERVAL, StatusError
from pswire.command.options import security_options
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
