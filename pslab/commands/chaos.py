"""The command ``ps-lab chaos``."""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import click

from pslab.chaos import copies, one_history
from pslab.chaos.campaign import KINDS, Campaign, Kind, Role, disturbances
from pslab.chaos.running import DisturbedRun
from pslab.chaos.verdict import Round, accuracy_of, as_json, judge, text
from pslab.commands.failure import EPILOG, failures
from pslab.display.progress import choose, print_json
from pslab.launch.engines.launcher import EngineError
from pslab.launch.experiments import load, run_local
from pslab.launch.job_place import with_job
from pslab.launch.restarts import NO_LIMIT
from pslab.launch.security import observable, security_of
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run, RunError
from pslab.runs.making import make_folder
from pswire.command.options import number_option, overrides_option
from pswire.config.experiment import Experiment, ExperimentError
from pswire.exits import ExitCode


@click.command(epilog=EPILOG)
@click.argument("experiment", type=click.Path(path_type=Path, dir_okay=False))
@number_option(
    "--minutes", 0, 10.0, "Start no disturbance and no run after this time; the last run ends by itself."
)
@click.option("--runs", type=click.IntRange(min=1), help="Maximum number of runs.")
@click.option("--kills", type=click.IntRange(min=1), help="Maximum number of disturbances in each run.")
@number_option("--seed", 0, 0, "Seed of the disturbances in the first run, counting up with each run.")
@number_option("--every", 1, 20, "Average distance between two disturbances.", metavar="VERSIONS")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="Kind of disturbance. Repeatable. kill: SIGKILL. stop: SIGSTOP, and SIGCONT after up to 1.5 worker timeouts. "
    "cut: close all connections of a worker, or to a server; not with replicas.  [default: all]",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(copies.ROLES),
    help="With replicas: what is disturbed. Repeatable.  [default: all]",
)
@overrides_option("Override a key. Repeatable.")
@number_option("--tolerance", 0, 0.05, "Permitted loss of accuracy against the undisturbed run.")
@click.option(
    "--reference/--no-reference",
    default=True,
    show_default=True,
    help="First make an undisturbed run, for the accuracy of a job that measures one.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="A new folder: DIR/reference, DIR/run-1, ...",
)
@click.option("--json", "report_json", is_flag=True, help="Print the report as one JSON object.")
@click.pass_context
def chaos(
    context: click.Context,
    experiment: Path,
    minutes: float,
    runs: int | None,
    kills: int | None,
    seed: int,
    every: int,
    kinds: Sequence[Kind],
    roles: Sequence[Role],
    overrides: tuple[str, ...],
    tolerance: float,
    reference: bool,
    out: Path,
    report_json: bool,
) -> None:
    """Run EXPERIMENT repeatedly while its processes are killed, stopped and cut off, and check that nothing is lost.

    Processes that die are restarted. The seed decides which process is disturbed, how, and after how many
    versions: workers always, servers only if the experiment takes checkpoints (run.checkpoint_every). Some
    disturbances strike while the job recovers from the previous one.

    Each run must succeed; its log must pass ps-lab check, and its checkpoints must match their digests; no
    batch may count twice; the accuracy must be that of an undisturbed run. After a run that violates this,
    no other is started, and the exit code is 9. The report says how often each role was disturbed, how long
    the next version took, and what was computed again.

    With replicas (cluster.replicas = 2) any server is disturbed, whatever it does then: it leads, serves another
    part, follows or votes. The next one comes when all are back, because two at once stop the job. Nothing may be
    rolled back, no batch lost; with the policy sync the weights must be those of the undisturbed run, unless a
    worker was lost.

    \b
      ps-lab chaos examples/digits-sync.toml --set run.checkpoint_every=10v --minutes 30 --out runs/chaos
    """
    with failures(ExperimentError, RunError, EngineError):
        loaded = with_job(load(experiment, overrides), experiment)
        if loaded.run.engine != "local":
            raise ExperimentError(
                f"run.engine: expected local, got {loaded.run.engine}: chaos disturbs processes of this machine"
            )
        replicas = loaded.cluster.replicas > 1
        _check_chosen(kinds, roles, loaded.cluster.servers if replicas else 0)
        _check_new(out)
        if not loaded.run.checkpoint_every and not replicas:
            click.echo(
                "note: only workers are disturbed, because without run.checkpoint_every no server may be lost",
                err=True,
            )
        until = time.monotonic() + 60 * minutes
        alone = _reference(loaded, out / "reference") if reference else None
        rounds: list[Round] = []
        for number in itertools.count(1):
            if number > 1 and (time.monotonic() >= until or (runs and number > runs)):
                break
            folder = out / f"run-{number}"
            campaign = _campaign(loaded, seed + number - 1, every, kinds, roles)
            found = _round(loaded, folder, seed + number - 1, until, kills, campaign, alone, tolerance)
            rounds.append(found)
            if found.problems:
                break
    wanted = accuracy_of(alone)
    if report_json:
        print_json(as_json(rounds, wanted))
    else:
        click.echo(text(rounds, wanted))
    context.exit(int(ExitCode.VIOLATIONS if any(each.problems for each in rounds) else ExitCode.OK))


def _check_new(folder: Path) -> None:
    """Raise RunError if the folder is not empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder}: expected a new or empty folder: choose another with --out")


def _check_chosen(kinds: Sequence[Kind], roles: Sequence[Role], copied: int) -> None:
    """Raise RunError for what such a job has not. `copied`: how many servers it has if these have replicas, else 0."""
    if roles and not copied:
        raise RunError(
            f"--role {roles[0]}: expected a job with replicas (cluster.replicas = 2), got one without"
        )
    absent = [role for role in roles if copied and role not in copies.roles_of(copied)]
    if absent:
        needed = {"voter": "an odd number of servers", "primary": "four servers or more"}[absent[0]]
        raise RunError(f"--role {absent[0]}: expected {needed} (cluster.servers), got {copied}")
    if copied and "cut" in kinds:
        raise RunError(
            "--kind cut: expected kill or stop, because workers of a job with replicas connect to whichever server "
            "leads, past what could be cut"
        )


def _reference(experiment: Experiment, folder: Path) -> Run:
    """Make an undisturbed run. Raises RunError."""
    finished = run_local(experiment, choose(as_json=False, quiet=True), out=folder)
    if not finished.result.ok:
        raise RunError(f"{folder}: the undisturbed run failed: {finished.result.verdict.reason}")
    alone = Run(folder)
    if experiment.cluster.replicas > 1:
        one_history.check_undisturbed(alone)
    return alone


def _campaign(
    experiment: Experiment, seed: int, every: int, kinds: Sequence[Kind], roles: Sequence[Role]
) -> Campaign | copies.CopiesCampaign:
    cluster = experiment.cluster
    if cluster.replicas > 1:
        there = roles or copies.roles_of(cluster.servers)
        plan = copies.disturbances(seed, cluster.workers, every, kinds or copies.KINDS, there)
        return copies.CopiesCampaign(plan, cluster.worker_timeout)
    servers = cluster.servers if experiment.run.checkpoint_every else 0
    return Campaign(disturbances(seed, servers, cluster.workers, every, kinds or KINDS))


def _round(
    experiment: Experiment,
    folder: Path,
    seed: int,
    until: float,
    kills: int | None,
    campaign: Campaign | copies.CopiesCampaign,
    alone: Run | None,
    tolerance: float,
) -> Round:
    display, daemons = choose(as_json=False, quiet=True), Daemons(restarts=NO_LIMIT)
    security, made = security_of(experiment, remote=False), make_folder(folder)
    run = DisturbedRun(experiment, made, display, daemons, campaign, until, kills or NO_LIMIT, security)
    with display, observable(made, security):
        result = run.run()
    with_copies = experiment.cluster.replicas > 1
    return judge(folder.resolve(), seed, result, campaign.outcomes, alone, tolerance, copies=with_copies)
