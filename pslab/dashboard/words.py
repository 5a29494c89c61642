"""An entry of the decision log in words."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pslab.runs import log as facts


def sentence(fact: facts.Fact) -> str:
    """What happened, without the time and, where there is one, the worker in front."""
    return WORDS[type(fact)](fact)


def _commit(commit: facts.Commit) -> str:
    loss = commit.loss
    told = f", loss {loss:.4g}" if loss is not None and math.isfinite(loss) else ""
    return f"commits ticket {commit.ticket}: {commit.samples} samples{told}"


def _apply(apply: facts.Apply) -> str:
    parts = ", ".join(
        f"{part.worker}'s ticket {part.ticket} (staleness {part.staleness}, weight {part.weight:.3g})"
        for part in apply.parts
    )
    scaled = "" if apply.lr_scale == 1 else f", learning rate × {apply.lr_scale:.3g}"
    return f"version {apply.version} is made of {parts}{scaled}"


def _refuse(refused: facts.Refuse) -> str:
    parts = ", ".join(f"{part.worker}'s ticket {part.ticket}" for part in refused.parts)
    return f"version {refused.version} would not be finite of {parts}: refused"


def _forgets(join: facts.Join) -> str:
    return f"; what its {' and its '.join(join.forgets)} remembered is lost" if join.forgets else ""


def _job(job: facts.JobEntry) -> str:
    of = f"{job.servers} server{'s' if job.servers > 1 else ''} and {job.workers} workers"
    return f"job {job.job}: {_named(job.policy)}, {_named(job.optimizer)}, {of}, seed {job.seed}"


def _named(config: Mapping[str, Any]) -> str:
    knobs = ", ".join(f"{key} {value}" for key, value in config.items() if key != "name")
    return f"{config.get('name')} ({knobs})" if knobs else str(config.get("name"))


WORDS: dict[type[Any], Callable[[Any], str]] = {
    facts.JobEntry: _job,
    facts.Join: lambda f: f"joins as incarnation {f.incarnation}{_forgets(f)}",
    facts.Work: lambda f: f"{f.units} units of work are dealt, in each of {f.epochs} epochs",
    facts.Resume: lambda f: "has data again",
    facts.Start: lambda f: "training starts",
    facts.Initialise: lambda f: f"is asked for the initial values, ticket {f.ticket}",
    facts.Install: lambda f: "the initial values are version 0",
    facts.Grant: lambda f: f"gets ticket {f.ticket} for version {f.version}" + (", ahead" if f.ahead else ""),
    facts.Commit: _commit,
    facts.Rate: lambda f: f"sets the learning rate to {f.learning_rate:.4g}",
    facts.Fold: lambda f: f"ticket {f.ticket} is added to the coming update, factor {f.factor:.3g}",
    facts.Apply: _apply,
    facts.Refuse: _refuse,
    facts.Drop: lambda f: f"ticket {f.ticket} is dropped, {f.reason}; staleness {f.staleness}",
    facts.Cancel: lambda f: f"ticket {f.ticket} is cancelled: {f.reason}",
    facts.Abandon: lambda f: f"gives ticket {f.ticket} up: {f.reason}",
    facts.Lost: lambda f: "has lost its connection",
    facts.Back: lambda f: "is back",
    facts.Leave: lambda f: f"leaves: {f.reason}",
    facts.Done: lambda f: "has no more data",
    facts.Checkpoint: lambda f: f"version {f.version} is kept in a checkpoint",
    facts.Restore: lambda f: f"goes on from the checkpoint of version {f.version}, on {f.servers} servers",
    facts.Stop: lambda f: f"the job stops at version {f.version}: {f.reason}",
}
