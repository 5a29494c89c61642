"""The command ``ps-lab advise``."""

import math
from collections.abc import Sequence
from pathlib import Path

import click

from pslab.advise.shelf import RATES, Candidate, candidates, first_choice, seconds_of
from pslab.advise.source import AdviceError, load_source, to_be_played
from pslab.commands.compare import CompareOptions, comparison_of, show
from pslab.commands.failure import EPILOG, failures, writing
from pslab.commands.sweep import Sweeping
from pslab.compare.groups import Goals, measured
from pslab.compare.halving import RungResult, halving, result_of, score
from pslab.display.progress import print_json
from pslab.experiment import Experiment
from pslab.launch.simulated import SharedTrainers
from pslab.runs.folder import Run, RunError
from pswire.config.distributions import DelayError
from pswire.config.experiment import ExperimentError
from psworker.job.errors import JobError

SEEDS = 5
# Candidates that are played to the last seed.
FINALISTS = 4


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
@click.option("--json", "as_json", is_flag=True, help="JSON objects instead of lines and a table.")
@click.pass_context
def advise(
    context: click.Context,
    source: Path,
    goals: Goals,
    seeds: int,
    rates: tuple[float, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Say which policy, with which knobs and learning rate, reaches a goal first.

    Sweeps the policies that fit on the simulator, with the servers' own code and the job's real gradients in this
    process, on a virtual clock. A RUN tells how long each worker's steps take; an EXPERIMENT declares it
    (simulation.compute). All candidates see the same seeds, delays and batches; after each seed the better half goes
    on. The first choice is the simplest of those that take at most 5 % longer than the fastest, and is written as an
    experiment file. The table is that of ps-lab compare.

    It does not know what another link, machine or failures would change, nor rates that were not tried, schedules, and
    policies whose workers take several steps of their own. For another cluster give an EXPERIMENT that describes it;
    steps.csv in DIR has the steps of a RUN, as simulation.compute = "trace(DIR/steps.csv)".

    No advice is given where a worker has fewer than 200 steps in the RUN, or where no play reached the goal. It runs
    the job's module, so use it on folders whose author you trust. Ctrl-C keeps finished plays, and the same command
    goes on.

    \b
      ps-lab advise runs/digits-sync --goal accuracy=0.95
      ps-lab advise examples/simulated-race.toml --goal accuracy=0.95 --rates 1,3
    """
    name = source.resolve().stem if source.is_file() else source.resolve().name
    folder = out or Path("runs") / f"{name}-advice"
    with failures(AdviceError, DelayError, ExperimentError, JobError, RunError), writing(folder):
        experiment = load_source(source, folder)
        folder.mkdir(parents=True, exist_ok=True)
        how = comparison_of(training_loss=goals.training_loss, accuracy=goals.accuracy, as_json=as_json)
        plays = _Plays(experiment, Sweeping(source, folder, how, SharedTrainers()), goals)
        tried = list(candidates(experiment, rates))
        skipped = [each for each in tried if isinstance(each, str)]
        if len(skipped) == len(tried):
            raise AdviceError(f"no policy can be tried for this job: {'; '.join(skipped)}")
        left = plays.play([each for each in tried if isinstance(each, Candidate)], seeds)
        if not left:
            context.exit(plays.running.code)
        chosen = first_choice({each: plays.results[each] for each in left})
        if not chosen:
            raise AdviceError(
                "no play reached the goal, so there is nothing to rank: expected a goal that this job reaches within "
                "job.epochs, with one of these learning rates (--rates)"
            )
        show([run for each in left for run in plays.runs[each]], how)
        _say(chosen, plays, skipped, folder, how)


class _Plays:
    """Plays of candidates. `results`, `runs`: of each candidate, a seed after the other."""

    def __init__(self, experiment: Experiment, running: Sweeping, goals: Goals) -> None:
        self.experiment, self.running, self._goals = experiment, running, goals
        self._played = to_be_played(experiment, goals)
        self.results: dict[Candidate, list[RungResult]] = {}
        self.runs: dict[Candidate, list[Run]] = {}

    def play(self, chosen: Sequence[Candidate], seeds: int) -> list[Candidate]:
        """Return those that were played under every seed; none after an interruption."""
        self.results, self.runs = {each: [] for each in chosen}, {each: [] for each in chosen}
        first, left = self.experiment.run.seed, list[Candidate]()
        for seed, left in halving(chosen, range(first, first + seeds), self._rank, FINALISTS):
            grid = {each: each.cell(self._played, seed) for each in left}
            made = {run.path.name: run for run in self.running.run(list(grid.values()))}
            if self.running.interrupted:
                return []
            for each, cell in grid.items():
                run = made.get(cell.name)
                self.runs[each] += [] if run is None else [run]
                found = None if run is None else result_of(measured(run, self._goals), self._goals)
                self.results[each].append(found or RungResult(math.inf, math.inf))
        return left

    def _rank(self, each: Candidate) -> tuple[float, ...]:
        """Rank a candidate by how it did so far; of equals, the simplest is first."""
        return (*score(self.results[each]), each.rank)


def _say(
    chosen: Sequence[Candidate], plays: _Plays, skipped: Sequence[str], folder: Path, how: CompareOptions
) -> None:
    """Write the first choice as an experiment file, and say what it is and how sure that is."""
    first, file = chosen[0], folder / "first.toml"
    results, goals = plays.results[first], how.goals
    seconds, missed = seconds_of(results), sum(math.isinf(each.seconds) for each in results)
    goal = (
        f"training loss {goals.training_loss:g}" if goals.accuracy is None else f"accuracy {goals.accuracy:g}"
    )
    sentence = f"Run {first.label}: {seconds:.4g} s to {goal}, mean of {len(results) - missed} seeds."
    found = first.experiment(plays.experiment)
    run = found.run.model_copy(update={"name": f"{found.run.name}-advised"})
    file.write_text(f"# {sentence}\n{found.model_copy(update={'run': run}).to_toml()}", encoding="utf-8")
    if how.as_json:
        print_json(
            {
                "event": "advice",
                "policy": {"name": first.policy, **first.knobs},
                "learning_rate": first.rate,
                "seconds": seconds,
                "missed": missed,
                "as_fast": [each.label for each in chosen[1:]],
                "skipped": list(skipped),
                "experiment": str(file),
            }
        )
        return
    click.echo(sentence)
    if missed:
        click.echo(f"It missed the goal under {missed} of {len(results)} seeds.")
    if chosen[1:]:
        click.echo(f"As fast: {'; '.join(each.label for each in chosen[1:])}. It is the simplest of them.")
    for each in skipped:
        click.echo(f"not tried: {each}")
    click.echo(f"first choice: ps-lab run {file}")
