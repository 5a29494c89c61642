"""One run of ps-worker, from its options to the exit code, and the lines that it prints."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from pswire import running
from pswire.config.distributions import DelayError, parse, stream
from pswire.config.experiment import Experiment
from pswire.config.flags import WORKER, Flag
from pswire.config.sections import Section
from pswire.exits import ExitCode
from pswire.logs.events import event, last_words
from pswire.patience import SERVER_TIMEOUT
from psworker.backends import DeviceError, computes
from psworker.connecting import open_link
from psworker.connection import Connection
from psworker.errors import Diverged, JobOver, Refused, SessionError, Unreachable, Untrusted
from psworker.evaluating import Evaluations, MonitorError, Plateau, Watched
from psworker.job import JobError
from psworker.link import Link
from psworker.local import tables_of
from psworker.loop import Outcome, Pause, no_pause, train
from psworker.trainers import load_trainer, requested_optimizer

log = logging.getLogger("ps-worker")

# Seconds between progress lines.
PROGRESS_EVERY = 2.0


class WorkerOptions(Section):
    """Options of one worker, beside the experiment."""

    name: Annotated[str | None, Flag((WORKER,))] = None
    """this worker's name in logs. Default: w<task index>"""

    options: Annotated[list[str], Flag((WORKER,), "option", "KEY=VALUE")] = Field(default_factory=list)
    """an option of the job"""

    save: Annotated[Path | None, Flag((WORKER,), metavar="FILE")] = None
    """write the trained model here at the end: FILE.keras, or the folder of a SavedModel"""

    save_best: Annotated[Path | None, Flag((WORKER,), metavar="FILE")] = None
    """write the model of the best evaluation here, each time there is a better one (worker 0; job.monitor says which is
    better, job.evaluate_every how often): FILE.keras"""

    device: Annotated[str | None, Flag((WORKER,), about="auto | cpu | gpu:N. Default: auto.")] = None
    """`cpu`, `gpu:N`, or `auto`"""

    server_timeout: Annotated[
        float,
        Field(ge=0),
        Flag(
            (WORKER,),
            about=f"Seconds to keep trying a server that does not answer.  [default: {SERVER_TIMEOUT}]",
        ),
    ] = SERVER_TIMEOUT
    """seconds to keep trying a server that does not answer"""


class Reporter:
    """Prints what the worker does: plain lines every few seconds, or JSON lines."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last = running.system()
        self._steps = 0

    def joined(self, link: Link, device: str) -> None:
        fields = {
            "worker": link.info.worker,
            "index": link.info.rank,
            "device": device,
            "job": link.info.job,
        }
        start = f", going on at batch {link.info.next_batch}" if link.info.next_batch else ""
        self._say("joined", fields, f"{link.info.worker} joined job {link.info.job} on {device}{start}")

    def progress(self, steps: int, loss: float, fates: Mapping[str, int]) -> None:
        now = running.system()
        if now - self._last < PROGRESS_EVERY:
            return
        rate = (steps - self._steps) / (now - self._last)
        self._last, self._steps = now, steps
        counts = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
        fields = {"steps": steps, "loss": loss, "steps_per_second": round(rate, 2), **fates}
        self._say(
            "progress",
            fields,
            f"step {steps}: loss {loss:.4f}, {rate:.1f} steps/s, {counts or 'none settled'}",
        )

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        fields = {"version": version, "metrics": dict(metrics)}
        self._say("evaluated", fields, f"version {version}: {numbers}")

    def lowered(self, version: int, rate: float) -> None:
        text = f"after the evaluation of version {version} the learning rate is lowered to {rate:.6g}"
        self._say("lowered", {"version": version, "learning_rate": rate}, text)

    def saved(self, path: Path) -> None:
        self._say("saved", {"path": str(path)}, f"the model of the last version is in {path}")

    def finished(self, outcome: Outcome) -> None:
        assert outcome.stop is not None
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in outcome.metrics.items())
        fields = {
            "steps": outcome.steps,
            "reason": outcome.stop.reason,
            "version": outcome.stop.version,
            "metrics": outcome.metrics,
        }
        text = f"finished after {outcome.steps} steps, version {outcome.stop.version}: {outcome.stop.reason}"
        self._say("finished", fields, f"{text}; {metrics}" if metrics else text)

    def over(self, reason: str) -> None:
        self._say("over", {"reason": reason}, f"nothing is left to do: {reason}")

    def _say(self, event: str, fields: Mapping[str, Any], text: str) -> None:
        print(json.dumps({"event": event, **fields}) if self._as_json else text, flush=True)


def fail(message: str, code: ExitCode) -> SystemExit:
    """Print the message, and return the exit to raise."""
    last_words("ps-worker", message, int(code))
    return SystemExit(int(code))


def run(
    experiment: Experiment,
    connection: Connection,
    options: WorkerOptions,
    report: Reporter,
) -> ExitCode:
    """Train, and return the exit code. Every failure prints one message and raises SystemExit."""
    try:
        outcome = _train(experiment, connection, options, report)
    except DelayError as error:
        raise fail(f"workers.N.delay: {error}", ExitCode.USAGE) from error
    except JobError as error:
        raise fail(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except Unreachable as error:
        raise fail(str(error), ExitCode.UNREACHABLE) from error
    except Diverged as error:
        raise fail(str(error), ExitCode.DIVERGED) from error
    except MonitorError as error:
        raise fail(f"job.{error}", ExitCode.JOB_FAILED) from error
    except JobOver as over:
        # A controller may restart a worker that had finished.
        report.over(str(over))
        return ExitCode.OK
    except Refused as error:
        raise fail(str(error), ExitCode.REFUSED) from error
    except Untrusted as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except SessionError as error:
        raise fail(str(error), ExitCode.INTERNAL) from error
    except KeyboardInterrupt:
        raise fail("interrupted", ExitCode.INTERRUPTED) from None
    report.finished(outcome)
    assert outcome.stop is not None
    if outcome.empty and not outcome.stop.success:
        job = experiment.job.module
        raise fail(
            f"{outcome.stop.reason}: dataset() of job {job} had no batch for this worker", ExitCode.JOB_FAILED
        )
    return ExitCode.OK if outcome.stop.success else ExitCode.UNREACHABLE


def _train(
    experiment: Experiment,
    connection: Connection,
    options: WorkerOptions,
    report: Reporter,
) -> Outcome:
    sys.path.insert(0, os.getcwd())
    section = None if connection.task_index is None else experiment.workers.get(connection.task_index)
    chosen = options.device or (section.device if section else "auto")
    trainer = _trainer(experiment, chosen)
    if tables_of(trainer) and options.save_best is not None:
        raise JobError(
            "--save-best: the rows of the model's tables go on with other workers while worker 0 evaluates: expected "
            "--save, for the last version, or ps-lab export --version"
        )
    optimizer = requested_optimizer(trainer, connection.parts)
    with open_link(
        connection,
        list(trainer.specs),
        prefetch=experiment.cluster.prefetch,
        local_rules=True,
        work=trainer.work,
        epochs=experiment.job.epochs,
        optimizer=optimizer,
        computes=computes(trainer.backend, trainer.device),
        function=trainer.function,
        tables=tables_of(trainer),
    ) as link:
        if optimizer is not None:
            from psworker.keras.translate import warn_of_clipping

            warn_of_clipping(trainer.optimizer, optimizer, link.info.size)
        own = experiment.run.seed
        if own != link.info.seed and not experiment.job.initial:
            log.warning(
                "this worker drew the model's initial values with seed %d, and the servers' seed is %d: expected "
                "--set run.seed=%d",
                *(own, link.info.seed, link.info.seed),
                extra=event("another_seed", seed=link.info.seed),
            )
        trainer.attach(link.plan, link.dtypes)
        report.joined(link, trainer.device)
        pause = injected_delay(experiment, link.info.rank, link.info.seed)
        evaluations = _evaluations(experiment, link, trainer, report, options.save_best)
        outcome = train(link, trainer, experiment.job.epochs, report.progress, pause, evaluations)
        save = options.save
        if save is not None and outcome.stop is not None and outcome.stop.success:
            tables = {table.name: link.pull_table(table.name) for table in tables_of(trainer)}
            trainer.save_model(link.plan.gather_by_name(link.pull_final()), save, tables=tables)
            report.saved(save)
        return outcome


def _evaluations(
    experiment: Experiment, link: Link, trainer: Any, report: Reporter, save_best: Path | None
) -> Evaluations | None:
    """Return the evaluations of worker 0, if the job asks for any. Raises MonitorError, on every worker."""
    section = experiment.job
    every = section.evaluations
    if every is None:
        return None
    watched = Watched(section.monitor, section.patience)
    _check_before_the_first_step(experiment, link, trainer, watched)
    if link.info.rank:
        return None

    def report_metrics(version: int, metrics: Mapping[str, float]) -> None:
        report.evaluated(version, metrics)
        link.report(metrics, version)

    def save(weights: list[Any]) -> None:
        assert save_best is not None
        aside = save_best.with_name(f".part-{save_best.name}")
        flats = [np.asarray(flat) for flat in weights]
        trainer.save_model(link.plan.gather_by_name(flats), aside)
        aside.replace(save_best)

    plateau = Plateau(section.plateau, section.plateau_factor, section.plateau_minimum)
    return Evaluations(
        every,
        watched,
        trainer,
        report_metrics,
        save if save_best is not None else None,
        plateau=plateau if section.plateau else None,
        rate=lambda: link.info.learning_rate,
        lowered=report.lowered,
    )


def _check_before_the_first_step(experiment: Experiment, link: Link, trainer: Any, watched: Watched) -> None:
    """Check what would otherwise fail only after the first epoch. Raises MonitorError."""
    names = trainer.measures()
    if names is not None:
        watched.check(names)
    if experiment.job.plateau and link.info.learning_rate is None:
        raise MonitorError(
            "plateau: no worker sets the learning rate of this job: it follows a schedule, or began with 0, or the "
            "policy tolerates bad workers, of which one could spoil the job with it; expected 0, or another optimizer "
            "or policy"
        )


def injected_delay(experiment: Experiment, worker_index: int, seed: int) -> Pause:
    """Return a function that sleeps for ``[workers.N] delay``, drawn anew at each call, as for simulated workers.

    Raises DelayError for a trace file that cannot be used.
    """
    section = experiment.workers.get(worker_index)
    delay = parse(section.delay) if section is not None else None
    if delay is None or delay.never:
        return no_pause
    draw = delay.draws(stream(seed, worker_index, "delay"))
    return lambda: time.sleep(draw())


def _trainer(experiment: Experiment, device: str) -> Any:
    """Load the trainer, and Keras with it: only after every check that does not need Keras."""
    try:
        return load_trainer(experiment, device)
    except DeviceError as error:
        raise fail(str(error), ExitCode.USAGE) from error
