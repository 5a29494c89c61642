"""An advice for people: a table and sentences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pslab.advise.judge import Judged
from pslab.compare.groups import Goals
from pslab.experiment import Experiment

HEAD = ("choice", "plays", "seconds", "P(best)", "ratio to sync", "80 % interval", "wasted", "least worker")


@dataclass(frozen=True, slots=True)
class Advice:
    """`skipped`: a sentence for each policy that could not be tried; `lost`: how often the run lost a worker that came
    back; `whole`: it was not interrupted."""

    experiment: Experiment
    goals: Goals
    judged: Sequence[Judged]
    skipped: Sequence[str]
    seeds: int
    lost: int
    whole: bool

    @property
    def first(self) -> Judged:
        """The simplest of those that cannot be told from the fastest."""
        return self.judged[0]

    def chosen(self) -> Experiment:
        """Return the first choice, under a name of its own: the source's run folder may be there."""
        found = self.first.candidate.experiment(self.experiment)
        named = found.run.model_copy(update={"name": f"{found.run.name}-advised"})
        return found.model_copy(update={"run": named})

    @property
    def goal(self) -> str:
        """Such as ``accuracy 0.95``."""
        accuracy = self.goals.accuracy
        return f"training loss {self.goals.training_loss:g}" if accuracy is None else f"accuracy {accuracy:g}"

    def sentences(self) -> list[str]:
        """Say what to run, how sure that is, and what is not known."""
        first = self.first
        tied = [each.candidate.label for each in self.judged[1:] if each.tied]
        found = [
            f"Run {first.candidate.label}: {first.seconds:.4g} s to {self.goal}, mean of {first.reached} seeds."
        ]
        if first.reached < first.plays:
            found.append(f"It missed the goal under {first.plays - first.reached} of {first.plays} seeds.")
        if tied:
            found.append(f"It cannot be told from {'; '.join(tied)}. It is the simplest of them.")
        if math.isfinite(first.ratio) and not first.candidate.baseline:
            found.append(
                f"It needs {first.ratio:.2f} of the time of sync ({first.low:.2f} to {first.high:.2f} in 4 of "
                "5 measurements by as many real runs)."
            )
        if first.least_share < 0.5:
            found.append(
                f"The slowest worker has {first.least_share:.0%} of an equal part: the model hardly sees its data."
            )
        if self.lost:
            found.append(f"The run lost a worker {self.lost} times, and so do plays that take as long.")
        if not self.whole:
            found.append("Interrupted: more seeds would tell more apart. The same command goes on.")
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "event": "advice",
            "goal": self.goal,
            "whole": self.whole,
            "skipped": list(self.skipped),
            "choices": [
                {
                    "policy": {"name": each.candidate.policy, **each.candidate.knobs},
                    "learning_rate": each.candidate.rate,
                    "plays": each.plays,
                    "reached": each.reached,
                    "seconds": each.seconds,
                    "best": each.best,
                    "ratio": each.ratio,
                    "low": each.low,
                    "high": each.high,
                    "wasted": each.wasted,
                    "least_share": each.least_share,
                    "tied": each.tied,
                }
                for each in self.judged
            ],
        }


def cells(judged: Judged) -> tuple[str, ...]:
    """Return one row of the table, as HEAD names it."""
    reached = f"{judged.reached} of {judged.plays}"
    interval = f"{judged.low:.2f} to {judged.high:.2f}" if math.isfinite(judged.low) else "-"
    return (
        f"{judged.candidate.label}{' (tie)' if judged.tied else ''}",
        reached,
        f"{judged.seconds:.4g}" if math.isfinite(judged.seconds) else "not reached",
        f"{judged.best:.0%}",
        f"{judged.ratio:.2f}" if math.isfinite(judged.ratio) else "-",
        interval,
        f"{judged.wasted:.0%}" if math.isfinite(judged.wasted) else "-",
        f"{judged.least_share:.0%}" if math.isfinite(judged.least_share) else "-",
    )


def table(advice: Advice) -> Table:
    """Return the finalists, the first choice on top."""
    shown = Table(title=f"time to {advice.goal}", title_justify="left", header_style="bold")
    for name in HEAD:
        shown.add_column(name, justify="left" if name == "choice" else "right")
    for judged in advice.judged:
        shown.add_row(*cells(judged))
    return shown
