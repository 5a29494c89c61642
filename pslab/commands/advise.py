"""The command ``ps-lab advise``."""

import math
from pathlib import Path

import click

from pslab.advise.advisor import Advisor, Progress
from pslab.advise.report import Advice, table
from pslab.advise.shelf import RATES, Candidate, candidates
from pslab.advise.source import AdviceError, load_source
from pslab.commands.failure import EPILOG, console, failures, writing
from pslab.compare.groups import Goals
from pslab.display.progress import print_json
from pslab.runs.folder import RunError
from pswire.config.distributions import DelayError
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from psworker.job.errors import JobError

SEEDS = 5


def _goal(context: click.Context, parameter: click.Parameter, text: str) -> Goals:
    name, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if name not in ("accuracy", "training_loss") or not equals or not math.isfinite(number):
        raise click.BadParameter(f"expected accuracy=X or training_loss=X, got {text!r}")
    return Goals(**{name: number})


def _rates(context: click.Context, parameter: click.Parameter, text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(each) for each in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise click.BadParameter(f"expected positive numbers with commas between them, got {text!r}")
    return rates


@click.command(epilog=EPILOG)
@click.argument("source", metavar="RUN|EXPERIMENT", type=click.Path(path_type=Path))
@click.option(
    "--goal",
    "goals",
    required=True,
    metavar="accuracy=X|training_loss=X",
    callback=_goal,
    help="The goal of every play: an evaluation's accuracy, or the mean training loss of ten versions.",
)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="An experiment file whose [cluster], [links], [faults], [workers.N] and simulation.factors stand in for the "
    "source's own.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=2),
    default=SEEDS,
    show_default=True,
    help="Plays of the candidates that stay to the end.",
)
@click.option(
    "--rates",
    default=",".join(map(str, RATES)),
    show_default=True,
    callback=_rates,
    help="Multiples of the learning rate to try.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where plays and first choice go [default: runs/NAME-advice]. Plays in it are kept.",
)
@click.option(
    "--any-pace",
    is_flag=True,
    help="Use a RUN whose pace drifted, too: plays draw from all its steps.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON objects instead of lines and a table.")
@click.pass_context
def advise(
    context: click.Context,
    source: Path,
    goals: Goals,
    cluster: Path | None,
    seeds: int,
    rates: tuple[float, ...],
    out: Path | None,
    any_pace: bool,
    as_json: bool,
) -> None:
    """Say which policy, with which knobs and learning rate, reaches a goal first.

    Plays every policy that fits on the simulator, with the servers' own code and the job's real gradients in this
    process, on a virtual clock. A RUN tells how long each worker's steps take; an EXPERIMENT declares it
    (simulation.compute). All candidates see the same seeds, delays and batches; after each seed the better half goes
    on. The first choice is the simplest of those that cannot be told from the fastest, and is written as an
    experiment file.

    It does not know what another link, machine or failures than the RUN's would change (--cluster describes them), nor
    rates that were not tried, schedules, and policies whose workers take several steps of their own.

    No advice is given where a worker has fewer than 200 steps in the RUN, where its pace drifted by a fifth (unless
    --any-pace), or where no play reached the goal. It runs the job's module, so use it on folders whose author you
    trust. Ctrl-C keeps what there is, and the same command goes on.

    \b
      ps-lab advise runs/digits-sync --goal accuracy=0.95
      ps-lab advise examples/simulated-race.toml --goal accuracy=0.95 --rates 1,3
    """
    name = source.resolve().stem if source.is_file() else source.resolve().name
    folder = out or Path("runs") / f"{name}-advice"
    with failures(AdviceError, DelayError, ExperimentError, JobError, RunError), writing(folder):
        question = load_source(source, folder, cluster, any_pace=any_pace)
        folder.mkdir(parents=True, exist_ok=True)
        experiment = question.experiment
        tried = list(candidates(experiment, rates))
        skipped = [each for each in tried if isinstance(each, str)]
        chosen = [each for each in tried if isinstance(each, Candidate)]
        say = _say_json if as_json else _say
        advisor = Advisor(question, goals, chosen, seeds, folder, say)
        judged = advisor.run()
        if not judged:
            if advisor.interrupted is not None:
                context.exit(advisor.interrupted)
            raise AdviceError(
                "no play reached the goal, so there is nothing to rank: expected a goal that this job reaches within "
                "job.epochs, with one of these learning rates (--rates)"
            )
        lost = len(question.outages.crashes)
        advice = Advice(experiment, goals, judged, skipped, seeds, lost, whole=advisor.interrupted is None)
        first = folder / "first.toml"
        first.write_text(f"# {advice.sentences()[0]}\n{advice.chosen().to_toml()}", encoding="utf-8")
    if as_json:
        print_json(advice.as_json() | {"experiment": str(first)})
    else:
        console().print(table(advice), soft_wrap=False)
        for sentence in (*advice.sentences(), *(f"not tried: {each}" for each in skipped)):
            click.echo(sentence)
        click.echo(f"first choice: ps-lab run {first}")
    context.exit(advisor.interrupted or ExitCode.OK)


def _say(progress: Progress) -> None:
    play = progress.play
    reached = f"{play.seconds:.4g} s" if math.isfinite(play.seconds) else "not reached"
    left = f"{progress.left} plays left, about {progress.seconds_left:.0f} s"
    click.echo(
        f"seed {progress.seed} of {progress.seeds}  {progress.candidate.label}  {reached}  ({left})", err=True
    )


def _say_json(progress: Progress) -> None:
    print_json(
        {
            "event": "play",
            "seed": progress.seed,
            "choice": progress.candidate.label,
            "seconds": progress.play.seconds,
            "left": progress.left,
        }
    )
