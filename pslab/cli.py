"""The command `ps-lab`."""

import sys

import click

from pslab.commands.certs import certs
from pslab.commands.failure import Failure
from pslab.commands.live.asking import note, status, watch
from pslab.commands.live.dashboard import dashboard
from pslab.commands.manifest import manifest
from pslab.commands.policies import optimizers, policies
from pslab.commands.recorded.checkpoints import checkpoints
from pslab.commands.recorded.export import export
from pslab.commands.recorded.replay import replay
from pslab.commands.recorded.views import check, report, tensorboard, trace
from pslab.commands.running.chaos import chaos
from pslab.commands.running.compare import compare
from pslab.commands.running.quickstart import quickstart
from pslab.commands.running.run import run
from pslab.commands.running.sweep import sweep_command
from pslab.commands.verify_policy import verify_policy
from pswire.exits import ExitCode, exit_codes_text

SECTIONS = {
    "Run experiments": (run, sweep_command, quickstart),
    "Look at a run that goes on": (status, watch, dashboard, note),
    "Read what a run left": (report, compare, check, replay, checkpoints, export, trace, tensorboard),
    "Choose a policy and an optimizer": (policies, optimizers, verify_policy),
    "Set up clusters, and try them": (certs, manifest, chaos),
}


# Characters of a command's first sentence in that list; it goes on in a second line.
SENTENCE = 120


class Sections(click.Group):
    """A group whose help lists its commands by what they are for."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(each.name or "", each.get_short_help_str(limit=SENTENCE)) for each in commands]
                )


@click.group(
    cls=Sections,
    epilog=f"\b\nExit codes:\n{exit_codes_text()}",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="paramserver", prog_name="ps-lab")
def cli() -> None:
    """Run experiments on a parameter server, watch them, check and compare what came out.

    An experiment is one TOML file (see examples/). `run` trains it and leaves a run folder
    with the decision log, metrics, a summary and the logs of every process; `check` proves
    that the log is consistent, `replay` executes it again; `compare` puts runs side by side,
    `sweep` runs many and compares them; `verify-policy` tries a policy of your own on random schedules.

    \b
      ps-lab run examples/digits-bounded.toml --set policy.max_staleness=2
      ps-lab check runs/digits-bounded
      ps-lab replay runs/digits-bounded
      ps-lab compare runs/digits-*

    The shell completes commands, options and the names of policies and optimizers after

    \b
      eval "$(_PS_LAB_COMPLETE=bash_source ps-lab)"     (or zsh_source)
    """


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


def main() -> None:
    """Entry point: exits with a code of pswire.exits.ExitCode."""
    try:
        code = cli.main(prog_name="ps-lab", standalone_mode=False)
    except Failure as error:
        error.show()
        code = error.code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.INTERRUPTED
    sys.exit(int(code or ExitCode.OK))


if __name__ == "__main__":
    main()
