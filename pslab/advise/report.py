"""An advice for people: a table, a page, and the first choice as an experiment file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.table import Table

from pslab.advise.judge import Judged
from pslab.compare.groups import Goals
from pswire.config.experiment import Experiment

HEAD = ("choice", "plays", "seconds", "P(best)", "ratio to sync", "80 % interval", "wasted", "least worker")
UNKNOWN = (
    "what a new link, another machine or failures that the run had not would change, unless --cluster describes it",
    "the processor time of workers that start again",
    "the time that servers take for an update, beyond what the measured steps hold",
    "learning rates between and beyond those that were tried, and schedules",
    "policies whose workers take several steps of their own, and your own policies",
    "whether another goal would rank them the same",
)


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
        return f"loss {self.goals.loss:g}" if accuracy is None else f"accuracy {accuracy:g}"

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
                    "seconds": _json(each.seconds),
                    "best": each.best,
                    "ratio": _json(each.ratio),
                    "low": _json(each.low),
                    "high": _json(each.high),
                    "wasted": _json(each.wasted),
                    "least_share": _json(each.least_share),
                    "tied": each.tied,
                }
                for each in self.judged
            ],
        }


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


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


def write(advice: Advice, folder: Path) -> tuple[Path, Path]:
    """Write the page and the first choice's experiment into `folder`. Return both files."""
    page, first = folder / "advice.html", folder / "first.toml"
    page.write_text(_page(advice), encoding="utf-8")
    first.write_text(f"# {advice.sentences()[0]}\n{advice.chosen().to_toml()}", encoding="utf-8")
    return page, first


def _page(advice: Advice) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(each))}</tr>" for each in advice.judged
    )
    notes = [
        f"Every candidate was played on the simulator with the same seeds, delays and batches, at most {advice.seeds} "
        "times; after each seed the better half went on. Seconds are virtual. P(best) comes from resampling the "
        "seeds. The interval is that of a ratio measured by as many real runs, with 5 % for the error of the pace. A "
        "tie cannot be told from the fastest.",
        *(f"Not tried: {sentence}" for sentence in advice.skipped),
    ]
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1080px;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;width:100%}td,th{padding:.35rem .6rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}thead th{border-bottom:2px solid #222}"
        "tbody tr:first-child{font-weight:600}tbody tr:nth-child(even){background:#f5f6f8}.note{color:#555}"
    )
    body = [
        "<h1>Which policy?</h1>",
        *(f"<p>{escape(sentence)}</p>" for sentence in advice.sentences()),
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>",
        *(f"<p class=note>{escape(note)}</p>" for note in notes),
        "<h2>What this does not know</h2>",
        f"<ul>{''.join(f'<li>{escape(each)}' for each in UNKNOWN)}</ul>",
        "<h2>The first choice</h2>",
        f"<pre>{escape(advice.chosen().to_toml())}</pre>",
    ]
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>Which policy?</title>"
        f"<style>{style}</style>\n" + "\n".join(body) + "\n</html>\n"
    )
