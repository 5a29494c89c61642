"""The command `ps-lab`."""

import sys

import click

from pslab.commands.advise import advise
from pslab.commands.certs import certs
from pslab.commands.change import policy, promote
from pslab.commands.compare import compare
from pslab.commands.dashboard import dashboard
from pslab.commands.export import export
from pslab.commands.failure import Failure
from pslab.commands.live import note, status
from pslab.commands.manifest import manifest
from pslab.commands.policies import list_command, verify_policy
from pslab.commands.predict import predict_command
from pslab.commands.quickstart import quickstart
from pslab.commands.recorded import check, checkpoints
from pslab.commands.replay import replay
from pslab.commands.run import run
from pslab.commands.sweep import sweep_command
from pswire.exits import ExitCode, exit_codes_text

SECTIONS = {
    "Run experiments": (run, sweep_command, quickstart),
    "Watch a running job": (status, dashboard, note, policy, promote),
    "Read a run folder": (compare, predict_command, check, replay, checkpoints, export),
    "Choose a policy and an optimizer": (advise, list_command, verify_policy),
    "Set up clusters": (certs, manifest),
}


# Characters of a command's first sentence in the list of commands; it may take two lines.
SENTENCE = 120


class Sections(click.Group):
    """A group whose help lists its commands by purpose."""

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
    """Run experiments on a parameter server, watch them, and check and compare the results.

    An experiment is one TOML file (see examples/). `run` trains it and writes a run folder with the
    decision log, metrics, a summary and the logs of every process; `check` verifies that the log is
    consistent, and `replay` executes it again; `compare` puts runs side by side, and `sweep` makes
    many runs and compares them; `verify-policy` tests a policy of your own on random schedules.

    \b
      ps-lab run examples/digits-bounded.toml --set policy.max_staleness=2
      ps-lab check runs/digits-bounded
      ps-lab replay runs/digits-bounded
      ps-lab compare runs/digits-*

    To let the shell complete commands, options and names of policies and optimizers:

    \b
      eval "$(_PS_LAB_COMPLETE=bash_source ps-lab)"     (or zsh_source)
    """


for commands in SECTIONS.values():
    for command in commands:
        cli.add_command(command)


def main() -> None:
    """Run the command line and exit with a code of `pswire.exits.ExitCode`."""
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
