"""Export of a run's weights, or its whole model, to formats of other tools.

Weights come from the run's last file, from a checkpoint of that version, or from the log, which is executed again. The
path's suffix chooses the format: .keras, .safetensors, .npz, or none for a SavedModel. Nothing is overwritten, and a
file appears whole or not at all.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslab.experiment import Experiment
from pslab.replay.execution import Replayed
from pslab.replay.records import model_of
from pslab.replay.run_folder import replay_of
from pslab.runs.checkpoints import Shelf
from pslab.runs.folder import EXPERIMENT, WEIGHTS, Run, RunError
from psserver import weights_file
from psserver.checkpoint import CheckpointError, Store, slots, weights
from psserver.checkpoint.manifest import NAME as MANIFEST
from psserver.checkpoint.rewind import RewindError
from psserver.decisions import entries
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.weights_file import WeightsFileError
from pswire.model.variables import WholeTables
from psworker.job.job import OptimizerState
from psworker.trainers import load_trainer

Floats = NDArray[np.float32]


class OtherWeightsError(RunError):
    """The log was executed again, and a contribution differs from the log."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The variables of one version by name, in the plan's order. `origin`: a phrase about where they come from.

    `optimizer`: its state; None if it was not asked for, is not known, or cannot be stored.
    """

    arrays: Mapping[str, Floats]
    version: int
    origin: str
    optimizer: OptimizerState | None = None
    tables: WholeTables = field(default_factory=dict)


def _weights_of_checkpoint(run: Run, version: int) -> Weights | None:
    """Read a version with its optimizer from a checkpoint of the run's log, with every byte verified.

    None where no intact one has it, or it has sparse tables, of which a checkpoint knows rows but not the model. One
    of the last version must have the run's fingerprint, too.
    """
    recorded = run.summary.weights_sha256 if version == run.summary.versions else None
    try:
        shelf = Shelf(run.path)
        names = reversed(shelf.store.names())
    except (CheckpointError, RewindError):
        return None
    for name in names:
        try:
            about = shelf.store.manifest(name)
            if about.version != version or about.tables or shelf.lacks(about) is not None:
                continue
            about, found = weights(shelf.store, name)
            if recorded not in (None, weights_file.Saved(found, tuple(found)).sha256()):
                continue
            return Weights(found, version, f"read from checkpoint {name}", _optimizer_of(shelf.store, name))
        except CheckpointError:
            # Damaged, or removed meanwhile.
            continue
    return None


def is_checkpoint(folder: Path) -> bool:
    """Return True for the folder of a complete checkpoint."""
    return (folder / MANIFEST).is_file()


def exported_checkpoint(folder: Path, path: Path) -> tuple[Weights, str]:
    """Write the weights of a checkpoint, wherever it lies, as `exported` does, with every byte verified.

    Raises RunError, also for a format that needs a model, and for sparse tables.
    """
    if needs_model(path):
        raise RunError(
            f"{folder}: is a checkpoint, of which only weights are written: expected .npz or .safetensors"
        )
    # Paths such as "." do not contain the folder's name.
    whole = folder.resolve()
    try:
        about, arrays = weights(Store(whole.parent), whole.name)
    except CheckpointError as error:
        raise RunError(error) from error
    if about.tables:
        raise RunError(
            f"{folder}: holds sparse tables, which are exported from the run, by --version {about.version}"
        )
    found = Weights(arrays, about.version, f"read from checkpoint {whole.name}")
    return found, write_weights(path, found, None)


def _optimizer_of(store: Store, name: str) -> OptimizerState:
    """Read the optimizer's state from a checkpoint. Raises CheckpointError."""
    about = store.manifest(name)
    try:
        optimizer = build_optimizer(about.optimizer)
    except OptimizerError as error:
        raise CheckpointError(f"{store.root / name}: {error}") from error
    found, scale = slots(store, name, about, optimizer.slots)
    began = about.optimizer["learning_rate"]
    rate = began * scale if isinstance(began, int | float) else None
    return OptimizerState(about.optimizer, found, about.version, rate)


def _optimizer_of_log(run: Run, version: int) -> OptimizerState | None:
    """Return the optimizer of the last version with its knobs and rate, without slots; None if it settles no model."""
    config: Mapping[str, object] | None = None
    rate: float | None = None
    for line in run.decisions():
        match line.fact:
            case entries.Model(optimizer=given):
                config, rate = given, None
            case entries.Rate(learning_rate=given_rate):
                rate = given_rate
    if config is None:
        return None
    return OptimizerState(config, None if build_optimizer(config).slots else (), version, rate)


def weights_of(
    run: Run, version: int | None, watch: Callable[[Replayed], None] | None = None, *, optimizer: bool = False
) -> Weights:
    """Return the weights of `version`, or of the last one. `optimizer`: with its state, as far as that is known.

    The last version's file is read, and compared with the run's fingerprint. Another version, or that of a run that was
    killed before it wrote the file, is read from a checkpoint; where none has it the log is executed again, which takes
    as long as computing every gradient in one process; `watch` is called after each version. Raises RunError, and
    JobError if the job's own code raises.
    """
    saved = run.path / WEIGHTS
    last = run.summary.versions
    wanted = last if version is None else version
    from_file = saved.is_file() and wanted == last
    if (optimizer or not from_file) and (found := _weights_of_checkpoint(run, wanted)) is not None:
        return found
    if from_file:
        arrays, tables = _read(run)
        state = _optimizer_of_log(run, last) if optimizer and not tables else None
        return Weights(arrays, last, f"read from {saved.name}", state, tables)
    execution = replay_of(run)
    if not 0 <= wanted <= execution.last:
        raise RunError(f"{run.path}: has no version {wanted}; its last one is {execution.last}")
    replayed = execution.run(wanted, watch)
    if replayed.first is not None:
        raise OtherWeightsError(f"{run.path}: these would not be the run's weights: {replayed.first}")
    store = execution.store
    state = OptimizerState(model_of(execution.steps).optimizer, store.slots(), wanted, replayed.rate)
    origin = "computed again from the decision log"
    return Weights(store.weights(), wanted, origin, state, store.tables())


def _read(run: Run) -> tuple[Mapping[str, Floats], WholeTables]:
    path = run.path / WEIGHTS
    try:
        found = weights_file.load(path)
        sha256 = found.sha256()
    except (WeightsFileError, OSError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    recorded = run.summary.weights_sha256
    if recorded not in (None, sha256):
        raise RunError(f"{path}: has the fingerprint {sha256}, expected the run's, {recorded}: it was edited")
    return {name: found.arrays[name] for name in found.order}, found.tables


NPZ, SAFETENSORS, KERAS, SAVED_MODEL = ".npz", ".safetensors", ".keras", ""
FORMATS = (KERAS, SAFETENSORS, NPZ, SAVED_MODEL)


@runtime_checkable
class ModelWriter(Protocol):
    """A trainer that can write its job's model: `psworker.keras.jobs.trainer.JobTrainer`."""

    def save_model(
        self,
        weights: Mapping[str, Floats],
        path: Path,
        optimizer: OptimizerState | None = None,
        tables: WholeTables = ...,
    ) -> str:
        """Write the model with weights and rows, as a Keras file if the path ends in .keras, else as a SavedModel.

        Return a phrase about the optimizer's state in the file.
        """
        ...


def check_target(path: Path) -> None:
    """Raise RunError for a path that names no format, or exists. Call it before anything is computed."""
    if path.suffix not in FORMATS:
        raise RunError(
            f"{path}: expected a name that ends in .keras, .safetensors or .npz, or one without an ending for a "
            f"SavedModel, got {path.suffix}"
        )
    if path.exists():
        raise RunError(f"{path}: exists; nothing is overwritten: choose another name, or remove it")


def needs_model(path: Path) -> bool:
    """Return True if the format also holds the model's code, which comes from the job."""
    return path.suffix in (KERAS, SAVED_MODEL)


def holds_optimizer(path: Path) -> bool:
    """Return True if the format holds the optimizer's state."""
    return path.suffix == KERAS


def write_weights(path: Path, found: Weights, model: ModelWriter | None) -> str:
    """Write a file or folder, with the `model` if the format needs one.

    Return a phrase about the optimizer's state in it. Raises RunError, with nothing left behind, and JobError.
    """
    phrase = "without the optimizer's state, for which the format has no place"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".export-", dir=path.parent))
        try:
            part = aside / path.name
            if model is not None:
                phrase = model.save_model(found.arrays, part, found.optimizer, found.tables)
            elif path.suffix == SAFETENSORS:
                weights_file.save(part, found.arrays, found.tables)
            else:
                _write_npz(part, weights_file.named(found.arrays, found.tables))
            part.rename(path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error
    return phrase


def _write_npz(path: Path, weights: Mapping[str, NDArray[Any]]) -> None:
    """Write as `numpy.savez` does, which cannot take a variable called "file"."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in weights.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


def exported(
    run: Run,
    path: Path,
    version: int | None = None,
    watch: Callable[[Replayed], None] | None = None,
    job: str | None = None,
) -> tuple[Weights, str]:
    """Write `version`, or the last one, to `path`, which `check_target` has accepted.

    Return what was written, and a phrase about the optimizer's state in the file. `job`: `FILE:CLASS` of the model,
    instead of the one that the run's experiment names.

    Raises RunError, ExperimentError, DataError, OtherWeightsError, and JobError.
    """
    found = weights_of(run, version, watch, optimizer=holds_optimizer(path))
    model = _model(run, job) if needs_model(path) else None
    return found, write_weights(path, found, model)


def _model(run: Run, job: str | None) -> Any:
    if job is not None:
        return load_trainer(Experiment.parse({"job": {"module": job}}), "cpu")
    if not (run.path / EXPERIMENT).is_file():
        raise RunError(
            f"{run.path / EXPERIMENT}: is missing, which names the job and so the model: name it by --job FILE:CLASS, "
            "or export weights.safetensors"
        )
    if not run.experiment.job.module:
        raise RunError(
            f"{run.path / EXPERIMENT}: names no [job]: there is no model to write; export weights.safetensors instead"
        )
    return load_trainer(run.experiment, "cpu")
