"""The experiment file: one TOML document that fully describes a run, or a list of what is wrong in it.

Importing this module imports pydantic.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pswire.config.problems import describe_problems
from pswire.config.ranges import range_of
from pswire.config.run_sections import (
    ClusterSection,
    JobSection,
    OptimizerSection,
    PolicySection,
    RunSection,
    SecuritySection,
    WorkerSection,
)
from pswire.config.sections import Section, keyed_by_number
from pswire.config.toml import OverrideError, TooLong, apply_overrides, read_text, read_toml
from pswire.model.plan import MAX_VOTERS

# The limit of an experiment file.
MAX_CHARACTERS = 2**20
# Take the optimizer, with its settings, from the first worker.
FROM_JOB = "from-job"
# Sections and keys that only `ps-lab` reads. Daemons pass over them.
OF_THE_LAB = ("links", "faults", "simulation", "cluster.hosts", "cluster.place")


class ExperimentError(ValueError):
    """An experiment that cannot be used. The text lists every problem with its file and key."""


class Experiment(Section):
    """What daemons read of an experiment. Every section has defaults, so that they can run without a file."""

    # The dotted names of what is passed over.
    unread: ClassVar[tuple[str, ...]] = OF_THE_LAB

    run: RunSection = RunSection()
    cluster: ClusterSection = ClusterSection()
    policy: PolicySection = PolicySection()
    optimizer: OptimizerSection = OptimizerSection()
    job: JobSection = JobSection()
    security: SecuritySection = SecuritySection()
    workers: dict[int, WorkerSection] = Field(default_factory=dict)

    @field_validator("workers", mode="before")
    @classmethod
    def _by_number(cls, value: Any) -> Any:
        return keyed_by_number(value)

    @model_validator(mode="before")
    @classmethod
    def _of_fit(cls, document: Any) -> Any:
        """Set the defaults of a Keras script, unless the file overrides them.

        The optimizer is the one the script compiles, and means are over samples, as in a single process.
        """
        if not isinstance(document, Mapping):
            return document
        job, found = document.get("job"), dict(document)
        if isinstance(job, Mapping) and job.get("script"):
            found = {"optimizer": {"name": FROM_JOB}, **found}
        optimizer, policy = found.get("optimizer"), found.get("policy", {})
        fits = isinstance(optimizer, Mapping) and optimizer.get("name") == FROM_JOB
        if fits and isinstance(policy, Mapping) and policy.get("name", "sync") == "sync":
            found["policy"] = {"weight": "samples", **policy}
        return found

    @model_validator(mode="after")
    def _parts_agree(self) -> "Experiment":
        if not (self.job.module or self.job.script) and self.job != JobSection(epochs=self.job.epochs):
            raise PydanticCustomError("absent", "job.module: missing; expected package.module:attribute")
        if self.job.script:
            self._check_script()
        self._check_members()
        self._check_evaluations()
        self._check_checkpoints()
        self._check_replicas()
        beyond = sorted(number for number in self.workers if not 0 <= number < self.cluster.workers)
        if beyond:
            raise PydanticCustomError(
                "range",
                "workers.{number}: expected a number below cluster.workers, which is {workers}",
                {"number": beyond[0], "workers": self.cluster.workers},
            )
        return self

    def _check_evaluations(self) -> None:
        """Refuse settings that act on evaluations if there are none, or if the learning rate is a schedule."""
        job, unset = self.job, JobSection()
        for key in ("patience", "plateau"):
            if getattr(job, key) and not job.evaluate_every:
                context = {"key": key}
                raise PydanticCustomError(
                    "unused", 'job.{key}: needs job.evaluate_every, for example "1 epoch"', context
                )
        for key in ("plateau_factor", "plateau_minimum"):
            if getattr(job, key) != getattr(unset, key) and not job.plateau:
                context = {"key": key}
                raise PydanticCustomError(
                    "unused", "job.{key}: needs job.plateau, a number of evaluations", context
                )
        if job.plateau and isinstance(self.optimizer.learning_rate, Mapping):
            raise PydanticCustomError(
                "unused",
                "job.plateau: optimizer.learning_rate is a schedule, which sets the rate already: use one of the two",
            )

    def _check_checkpoints(self) -> None:
        """Refuse settings that act on checkpoints if none are taken."""
        if self.run.checkpoint_every:
            return
        for unwanted, key in (
            (self.run.keep != RunSection().keep, "run.keep"),
            (self.cluster.recover_timeout not in ("auto", 0), "cluster.recover_timeout"),
        ):
            if unwanted:
                needs = '{key}: needs run.checkpoint_every, for example "60 s"'
                raise PydanticCustomError("unused", needs, {"key": key})

    def _check_members(self) -> None:
        """Refuse a start that waits for more workers than may ever join."""
        cluster = self.cluster
        needed = cluster.min_workers or cluster.workers
        if needed > cluster.workers:
            raise PydanticCustomError(
                "range",
                "cluster.min_workers: expected at most cluster.workers, which is {workers}, got {needed}",
                {"needed": needed, "workers": cluster.workers},
            )
        for key, most in (
            ("max_workers", cluster.max_workers),
            ("allowed_workers", len(cluster.allowed_workers)),
        ):
            if 0 < most < needed:
                raise PydanticCustomError(
                    "range",
                    "cluster.{key}: expected room for the {needed} workers that the start waits for, got {most}",
                    {"key": key, "needed": needed, "most": most},
                )

    def _check_replicas(self) -> None:
        """Refuse what servers with replicas do not do."""
        cluster, run = self.cluster, self.run
        if cluster.replicas == 1:
            return
        for unwanted, key, expected, got in (
            (
                not 2 <= cluster.servers <= MAX_VOTERS,
                "cluster.servers",
                f"2 to {MAX_VOTERS}, better 3 or more: each two hold copies of a part, and an odd last one votes",
                cluster.servers,
            ),
            (run.engine == "simulated", "run.engine", "an engine with processes", run.engine),
        ):
            if unwanted:
                context = {"key": key, "expected": expected, "got": got}
                raise PydanticCustomError(
                    "replicas", "{key}: with cluster.replicas = 2 expected {expected}, got {got}", context
                )

    def _check_script(self) -> None:
        """Refuse settings that a script makes itself, where they would have no effect."""
        for unwanted, key, instead in (
            (self.job.module, "job.module", "a job is a module or a script"),
            (self.job.epochs != 1, "job.epochs", "the script sets it, in fit(epochs=...)"),
            (self.job.options, "job.options", "a script has arguments"),
            (self.job.initial, "job.initial", "the script loads its model itself"),
            (
                self.job.evaluate_every,
                "job.evaluate_every",
                "the script sets it, in fit(validation_data=...)",
            ),
            (self.job.patience, "job.patience", "the script sets it, by the callback EarlyStopping"),
            (self.job.plateau, "job.plateau", "the script sets it, by the callback ReduceLROnPlateau"),
            (self.cluster.prefetch, "cluster.prefetch", "fit does not fetch ahead"),
            (self.run.deterministic, "run.deterministic", "a script configures TensorFlow's threads itself"),
            (self.workers, "workers", "a script chooses its device itself, and has no delays"),
        ):
            if unwanted:
                context = {"key": key, "instead": instead}
                raise PydanticCustomError("unused", "{key}: not with job.script: {instead}", context)

    @classmethod
    def load(
        cls,
        path: str | Path | None,
        overrides: Sequence[str] = (),
        typed: Mapping[str, str] = MappingProxyType({}),
        beneath: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Read an experiment file and apply `overrides` such as "policy.max_staleness=2".

        Without a path the document is `beneath`. `typed`: by key, the option that set it, for error messages. The value
        of an override is TOML; a bare word is a string.

        Raises ExperimentError listing every problem: a file that cannot be read or is not TOML, unknown keys with the
        nearest known one, wrong types and values. Knobs of policies and optimizers are not checked here.
        """
        document = _read(Path(path)) if path is not None else deepcopy(dict(beneath))
        try:
            apply_overrides(document, overrides)
        except OverrideError as error:
            raise ExperimentError(str(error)) from error
        by_set = {key: f"--set {key}" for key in (text.partition("=")[0].strip() for text in overrides)}
        return cls.parse(document, "options" if path is None else str(path), by_set | dict(typed))

    @classmethod
    def parse(
        cls,
        document: Mapping[str, Any],
        source: str = "experiment",
        typed: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Validate a document in memory. Raises ExperimentError, naming `source` or the option that was `typed`."""
        try:
            return cls.model_validate(_without(document, cls.unread))
        except ValidationError as error:
            problems = describe_problems(error, _known_keys(cls), typed, partial(range_of, cls))
        if len(problems) == 1:
            raise ExperimentError(problems[0] if problems[0].startswith("--") else f"{source}: {problems[0]}")
        raise ExperimentError("\n  ".join([f"{source}: {len(problems)} problems", *problems]))


def _without(document: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the document without these sections and keys of sections."""
    kept = {section: table for section, table in document.items() if section not in names}
    for section, _, key in (name.partition(".") for name in names):
        if isinstance(table := kept.get(section), Mapping) and key in table:
            kept[section] = {each: value for each, value in table.items() if each != key}
    return kept


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(read_text(path, MAX_CHARACTERS))
    except TooLong as error:
        raise ExperimentError(str(error)) from error
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ExperimentError(f"{path}: expected UTF-8 text, got the byte {byte:#04x}") from error
    except (ValueError, RecursionError) as error:
        raise ExperimentError(f"{path}: expected TOML: {error}") from error


def _known_keys(model: type[Experiment]) -> dict[str, list[str]]:
    """Return the key names of each section and table in it, by dotted name; "" has the names of the sections."""
    found = {"": [*model.model_fields, *(name for name in model.unread if "." not in name)]}
    tables: list[tuple[str, Any]] = [(name, field.annotation) for name, field in model.model_fields.items()]
    for name, kind in tables:
        for each in (kind, *get_args(kind)):
            if isinstance(each, type) and issubclass(each, Section):
                found[name] = list(each.model_fields)
                tables += [(f"{name}.{key}", field.annotation) for key, field in each.model_fields.items()]
    return found
