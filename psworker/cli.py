"""The ps-worker command."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import numpy as np

from pswire.addresses import Address, AddressError, parse_hosts
from pswire.config.distributions import DelayError, parse, stream
from pswire.config.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from pswire.config.overrides import OverrideError, apply_overrides
from pswire.exits import ExitCode, exit_codes_text
from pswire.logs.events import FORMATS, last_words, set_up
from pswire.process import die_with, keep_large_blocks
from pswire.task_index import chosen_task_index
from pswire.tf_config import cluster_from_tf_config
from psworker.engine import Disposition
from psworker.errors import Refused, SessionError, Unreachable
from psworker.evaluating import Evaluations, Every, MonitorError, Watched
from psworker.job import JobError
from psworker.loop import Diverged, Outcome, Pause, no_pause, train
from psworker.session import Session, connect
from psworker.trainers import load_trainer, requested_optimizer

EPILOG = "\b\nExit codes:\n" + exit_codes_text()

# Between progress lines, in seconds.
PROGRESS_EVERY = 2.0


class UsageError(ValueError):
    """Options that do not make a worker."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers are and which worker this is."""

    hosts: tuple[Address, ...]
    task_index: int | None


@click.command(
    epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="paramserver", prog_name="ps-worker")
@click.option("--ps-hosts", metavar="HOST:PORT,...", help="All servers, in task order. Default: TF_CONFIG.")
@click.option("--job", metavar="MODULE:NAME", help="What to train: package.module:name or path/file.py:name.")
@click.option(
    "--task-index",
    metavar="N|auto",
    help="Which part of the data to take. auto: from TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX. "
    "Default: TF_CONFIG's if that is in use, else the servers choose.",
)
@click.option("--name", help="This worker's name in logs. Default: w<task index>.")
@click.option("--epochs", type=int, help="Passes over this worker's data. Default: 1.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the job. Repeatable."
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Compute on one thread, with TensorFlow's deterministic operations, so that the run repeats and replays to "
    "the bit. Costs the other cores.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the trained model here at the end: FILE.keras, or the folder of a SavedModel.",
)
@click.option(
    "--save-best",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the model of the best evaluation here, each time there is a better one (worker 0; job.monitor says "
    "which is better, job.evaluate_every how often): FILE.keras.",
)
@click.option(
    "--evaluate-every",
    metavar="N UNIT",
    help="Measure the held-out data while training, too: '1 epoch', '200 versions', '30 s' (worker 0).",
)
@click.option("--device", help="auto | cpu | gpu:N. Default: auto.")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="Experiment file (TOML).")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any key of an experiment file. Repeatable.",
)
@click.option(
    "--wire-dtype",
    help="How numbers travel outside shared memory: float32 | bfloat16 | float16. Default: float32.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "grpc", "socket", "shared-memory"]),
    help="How payloads travel. auto: in memory shared with servers of this machine (numbers as float32 only), else "
    "over a plain socket, else by gRPC. Any other: that, or an error. Default: auto.",
)
@click.option(
    "--prefetch/--no-prefetch",
    default=None,
    help="Fetch the next weights while the gradient is computed, where the policy permits: hides the time of the "
    "transfer; costs a staleness of one more, and memory for one more version. Default: no.",
)
@click.option(
    "--server-timeout",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to keep trying a server that does not answer.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Of standard error. json: an object per line, with a stable event name.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on standard output.")
@click.option("--parent", type=int, hidden=True, help="Exit when the parent process is no longer this one.")
def main(
    ps_hosts: str | None,
    job: str | None,
    task_index: str | None,
    name: str | None,
    epochs: int | None,
    options: tuple[str, ...],
    deterministic: bool,
    save: Path | None,
    save_best: Path | None,
    evaluate_every: str | None,
    device: str | None,
    config: Path | None,
    overrides: tuple[str, ...],
    wire_dtype: str | None,
    transport: str | None,
    prefetch: bool | None,
    server_timeout: float,
    as_json: bool,
    log_format: str,
    parent: int | None,
) -> None:
    """Compute gradients of a job's model and push them to the parameter servers.

    \b
    With servers at localhost:7070 and localhost:7071 (see ps-server --help):
      ps-worker --ps-hosts localhost:7070,localhost:7071 --job examples.digits:Digits

    The job is a small Python module of yours: a model, a dataset for worker i
    of n, and a loss (see psworker.Job). A worker may join or be restarted
    at any time; it goes on with the first batch that it has not committed.
    """
    set_up("ps-worker", log_format)
    keep_large_blocks()
    signal.signal(signal.SIGTERM, _terminated)
    if parent is not None:
        die_with(parent)
    shortcuts = {
        "job.module": job,
        "job.epochs": epochs,
        "cluster.wire_dtype": wire_dtype,
        "cluster.transport": transport,
        "cluster.prefetch": prefetch,
        "run.deterministic": True if deterministic else None,
        "job.evaluate_every": evaluate_every,
    }
    given = [f"{key}={json.dumps(value)}" for key, value in shortcuts.items() if value is not None]
    given += [f"job.options.{option}" for option in options]
    try:
        _check_new("--save", save)
        _check_new("--save-best", save_best)
        index = chosen_task_index(task_index, "ps-worker")
        place = find_place(ps_hosts, index, os.environ.get("TF_CONFIG"))
        experiment = read_experiment(config, (*given, *overrides), place)
        if save_best is not None and not experiment.job.evaluate_every:
            raise UsageError("--save-best: needs --evaluate-every, '1 epoch', say")
    except (UsageError, AddressError, ExperimentError) as error:
        raise fail(str(error), ExitCode.USAGE) from error
    report = Reporter(as_json)
    code = run(experiment, place, name, device, server_timeout, report, save, save_best)
    sys.exit(int(code))


def _check_new(option: str, save: Path | None) -> None:
    """Before hours of training. Raises UsageError."""
    if save is None:
        return
    if save.exists():
        raise UsageError(f"{option} {save}: is there already; name another file")
    if save.suffix not in (".keras",) + (("",) if option == "--save" else ()):
        raise UsageError(
            f"{option} {save}: expected a name that ends in .keras, or a folder's without an ending"
        )
    if not os.access(save.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {save}: {save.absolute().parent} is no folder that can be written to")


def find_place(ps_hosts: str | None, task_index: int | None, tf_config: str | None) -> Place:
    """From options and TF_CONFIG. Raises UsageError, AddressError."""
    if ps_hosts is not None:
        return Place(parse_hosts(ps_hosts), task_index)
    if not tf_config:
        raise UsageError("expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither")
    cluster = cluster_from_tf_config(tf_config)
    if cluster.task_type != "worker":
        raise UsageError(
            f"TF_CONFIG: task.type: expected worker or chief for a ps-worker, got {cluster.task_type}"
        )
    return Place(cluster.ps, cluster.task_index if task_index is None else task_index)


def read_experiment(config: Path | None, overrides: Sequence[str], place: Place) -> Experiment:
    """Raises ExperimentError, UsageError."""
    if config is not None:
        experiment = load_experiment(config, overrides)
    else:
        document: dict[str, Any] = {"cluster": {"servers": len(place.hosts)}}
        try:
            apply_overrides(document, overrides)
        except OverrideError as error:
            raise ExperimentError(str(error)) from error
        if "job" not in document:
            raise UsageError("expected --job package.module:name (or --config with a [job]), got neither")
        experiment = parse_experiment(document, "options")
    if not experiment.job.module:
        raise UsageError(f'{config} has no [job]: add module = "package.module:name", or give --job')
    return experiment


def run(
    experiment: Experiment,
    place: Place,
    name: str | None,
    device: str | None,
    server_timeout: float,
    report: "Reporter",
    save: Path | None = None,
    save_best: Path | None = None,
) -> ExitCode:
    """Train; every failure is one clear message and its exit code."""
    try:
        outcome = _train(experiment, place, name, device, server_timeout, report, save, save_best)
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
    except Refused as error:
        raise fail(str(error), ExitCode.REFUSED) from error
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
    place: Place,
    name: str | None,
    device: str | None,
    server_timeout: float,
    report: "Reporter",
    save: Path | None,
    save_best: Path | None,
) -> Outcome:
    sys.path.insert(0, os.getcwd())
    section = experiment.workers.get(place.task_index) if place.task_index is not None else None
    chosen = device or (section.device if section else "auto")
    trainer = _trainer(experiment, chosen)
    with connect(
        place.hosts,
        trainer.specs,
        name=name,
        task_index=place.task_index,
        wire_dtype=experiment.cluster.wire_dtype,
        server_timeout=server_timeout,
        transport=experiment.cluster.transport,
        prefetch=experiment.cluster.prefetch,
        local_rules=True,
        work=trainer.work,
        epochs=experiment.job.epochs,
        optimizer=requested_optimizer(trainer),
    ) as session:
        trainer.attach(session.plan, session.dtypes)
        report.joined(session, trainer.device)
        pause = injected_delay(experiment, session.worker_index, session.seed)
        evaluations = _evaluations(experiment, session, trainer, report, save_best)
        outcome = train(session, trainer, experiment.job.epochs, report.progress, pause, evaluations)
        if save is not None and outcome.stop is not None and outcome.stop.success:
            trainer.save_model(session.plan.gather_by_name(session.pull_final()), save)
            report.saved(save)
        return outcome


def _evaluations(
    experiment: Experiment, session: Session, trainer: Any, report: "Reporter", save_best: Path | None
) -> Evaluations | None:
    """Those of worker 0, where the job asks for any."""
    section = experiment.job
    if not section.evaluate_every or session.worker_index:
        return None

    def told(version: int, metrics: Mapping[str, float]) -> None:
        report.evaluated(version, metrics)
        session.report(metrics, version)

    def keep(weights: list[Any]) -> None:
        assert save_best is not None
        aside = save_best.with_name(f".part-{save_best.name}")
        flats = [np.asarray(flat) for flat in weights]
        trainer.save_model(session.plan.gather_by_name(flats), aside)
        aside.replace(save_best)

    watched = Watched(section.monitor, section.patience)
    every = Every.parse(section.evaluate_every)
    return Evaluations(every, watched, trainer, told, keep if save_best is not None else None)


def injected_delay(experiment: Experiment, worker_index: int, seed: int) -> Pause:
    """Sleeps for as long as ``[workers.N] delay`` says, drawn anew at each call, as the simulated worker's delays are.

    Raises DelayError for a trace file that cannot be used.
    """
    section = experiment.workers.get(worker_index)
    delay = parse(section.delay) if section is not None else None
    if delay is None or delay.never:
        return no_pause
    draw = delay.draws(stream(seed, worker_index, "delay"))
    return lambda: time.sleep(draw())


def _trainer(experiment: Experiment, device: str) -> Any:
    """TensorFlow is loaded here, when everything that could be wrong without it has been looked at."""
    import psworker.tensorflow.quiet  # noqa: F401
    from psworker.tensorflow.device import DeviceError

    try:
        return load_trainer(experiment, device)
    except DeviceError as error:
        raise fail(str(error), ExitCode.USAGE) from error


class Reporter:
    """What the worker prints: plain lines every few seconds, or JSON lines."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._last = time.monotonic()
        self._steps = 0
        self._counts: dict[str, int] = {}

    def joined(self, session: Session, device: str) -> None:
        fields = {
            "worker": session.worker,
            "index": session.worker_index,
            "device": device,
            "job": session.job,
        }
        start = f", going on at batch {session.next_batch}" if session.next_batch else ""
        self._say("joined", fields, f"{session.worker} joined job {session.job} on {device}{start}")

    def progress(self, steps: int, loss: float, fates: list[Disposition]) -> None:
        for fate in fates:
            self._counts[fate.fate] = self._counts.get(fate.fate, 0) + 1
        now = time.monotonic()
        if now - self._last < PROGRESS_EVERY:
            return
        rate = (steps - self._steps) / (now - self._last)
        self._last, self._steps = now, steps
        counts = ", ".join(f"{count} {fate}" for fate, count in sorted(self._counts.items()))
        fields = {"steps": steps, "loss": loss, "steps_per_second": round(rate, 2), **self._counts}
        self._say(
            "progress",
            fields,
            f"step {steps}: loss {loss:.4f}, {rate:.1f} steps/s, {counts or 'none settled'}",
        )

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        said = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        fields = {"version": version, "metrics": dict(metrics)}
        self._say("evaluated", fields, f"version {version}: {said}")

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

    def _say(self, event: str, fields: Mapping[str, Any], text: str) -> None:
        print(json.dumps({"event": event, **fields}) if self._as_json else text, flush=True)


def fail(message: str, code: ExitCode) -> SystemExit:
    last_words("ps-worker", message, int(code))
    return SystemExit(int(code))


def _terminated(number: int, frame: FrameType | None) -> None:
    # As an exception, so that the session sends Leave.
    raise SystemExit(int(ExitCode.TERMINATED))
