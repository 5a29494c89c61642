"""Run experiments: load and check an experiment file, and train it as processes into a run folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pslab.display.progress import Display
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import Launcher
from pslab.launch.exits import RunResult, Verdict
from pslab.launch.run import RealRun
from pslab.launch.security import observable, security_of
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run
from pslab.runs.making import open_folder
from psserver.checkpoint.resumption import AUTO
from psserver.codec_rules import check_codec
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy
from psserver.policy_plan import plan_of
from psserver.shard.fragments import check_fragments
from pswire.config.experiment import FROM_JOB, ExperimentError
from pswire.config.toml import OverrideError, apply_overrides
from pswire.exits import ExitCode
from pswire.transport.wire import wire_named


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its folder, its result, and the last output (`tail`) of the process that failed.

    `reported`: that output was shown already, with a warning.
    """

    folder: Path
    result: RunResult
    tail: str
    reported: bool = False


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment and build its policy and optimizer once, before any process starts.

    Raises ExperimentError.
    """
    return checked(Experiment.load(path, overrides), path)


def checked(experiment: Experiment, path: Path) -> Experiment:
    """Return the experiment if real processes can train it. Raises ExperimentError."""
    if not (experiment.job.module or experiment.job.script):
        raise ExperimentError(
            f'{path}: job.module is missing; expected "package.module:attribute" or "file.py:attribute"'
        )
    if experiment.job.initial and not Path(experiment.job.initial).is_file():
        raise ExperimentError(f"{path}: job.initial: file {experiment.job.initial} does not exist")
    _try_out(experiment, str(path))
    return experiment


def of_script(script: Path, arguments: Sequence[str], overrides: Sequence[str]) -> Experiment:
    """Return the experiment whose workers run a training script of the user. Raises ExperimentError."""
    if not script.is_file():
        raise ExperimentError(f"{script}: expected a training script, got no such file")
    document: dict[str, Any] = {"run": {"name": script.stem}}
    keys = {"job.script": str(script), "job.arguments": list(arguments)}
    try:
        apply_overrides(document, [f"{key}={json.dumps(value)}" for key, value in keys.items()])
        apply_overrides(document, overrides)
    except OverrideError as error:
        raise ExperimentError(str(error)) from error
    experiment = Experiment.parse(document, str(script))
    _try_out(experiment, str(script))
    return experiment


def _try_out(experiment: Experiment, source: str) -> None:
    """Raise ExperimentError if the policy, optimizer and codec cannot be built or do not fit together."""
    cluster, policy = experiment.cluster, experiment.policy
    try:
        built = build_policy(policy.name, policy.knobs, cluster.workers, cluster.parts)
        wire, optimizer = wire_named(cluster.wire_dtype), None
        if (wire.up.scaled or wire.deltas) and cluster.transport == "shared-memory":
            raise ExperimentError(f"cluster.transport: shared memory carries float32, not {wire.name}")
        if experiment.optimizer.name != FROM_JOB:
            optimizer = build_optimizer(experiment.optimizer.config)
            optimizer.check_local(built.local_rule.name)
            optimizer.check_whole((), cluster.parts)
        check_codec(wire.up, built, optimizer)
        check_fragments(built.tensors.fragments, optimizer, replicas=cluster.replicas)
        plan_of(experiment, built, optimizer)
    except ValueError as error:
        raise ExperimentError(f"{source}: {error}") from error


def _has_succeeded(run: Run) -> bool:
    """Whether the job succeeded and its weights are complete; a server lost at the end may have taken its part."""
    return bool(run.stopped and run.summary.success and run.summary.weights_sha256)


def run_real(
    experiment: Experiment,
    display: Display,
    launcher: Launcher,
    *,
    out: Path | None = None,
    force: bool = False,
    daemons: Daemons | None = None,
    resume_from: str | None = None,
) -> FinishedRun:
    """Run an experiment as processes that `launcher` starts, into `out` or ``runs/<name>``.

    `resume_from`: a checkpoint of the run in `out`, "latest", or "auto", which does nothing if the job has succeeded.
    Raises RunError when the folder cannot be used, EngineError when the run cannot be protected.
    """
    security = security_of(experiment, launcher.remote)
    folder, resume_from = open_folder(out, experiment.run.name, force, resume_from)
    if resume_from == AUTO and _has_succeeded(Run(folder)):
        verdict = Verdict(ExitCode.OK, "the job had succeeded before")
        return FinishedRun(folder, RunResult(verdict, (f"{verdict.reason}: nothing was left to do",)), "")
    run = RealRun(experiment, folder, display, launcher, daemons, resume_from, security=security)
    with display, observable(folder, security):
        result = run.run()
    culprit = result.verdict.culprit
    if culprit is None:
        return FinishedRun(folder, result, "")
    return FinishedRun(folder, result, run.tail(culprit), run.reported(culprit))
