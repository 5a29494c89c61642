"""The command `scripts/bench availability`."""

import click

from benchmarks.availability import checkpoints, recovery, replicas
from pswire.command.options import CONTEXT


@click.group(context_settings=CONTEXT)
def main() -> None:
    """Measure what checkpoints, recovery and the second copy cost."""


main.add_command(checkpoints.main, "checkpoint")
main.add_command(recovery.main, "recovery")
main.add_command(replicas.main, "replicas")
