"""Where an experiment's job is: found, and looked into without importing it, before any process is started."""

import ast
import importlib.util
import sys
from pathlib import Path

from pslab.experiment import Experiment
from pswire.config.experiment import ExperimentError
from pswire.nearest import did_you_mean


def with_job(experiment: Experiment, source: Path) -> Experiment:
    """Return the experiment with its job's files as paths from the current folder.

    A file is looked for beside `source`, the experiment file, then in the current folder. Raises ExperimentError if
    there is no such file or module, or if the file has no such name.
    """
    job, found = experiment.job, dict[str, str]()
    if job.module:
        place, _, name = job.module.rpartition(":")
        if place.endswith(".py") or "/" in place:
            file = _file("job.module", place, source)
            _check_name(file, name, source)
            found["module"] = f"{file}:{name}"
        elif experiment.run.engine == "local":
            _check_module(place, source)
    if job.initial:
        found["initial"] = str(_file("job.initial", job.initial, source))
    return experiment.model_copy(update={"job": job.model_copy(update=found)}) if found else experiment


def _file(key: str, named: str, source: Path) -> Path:
    for path in dict.fromkeys((source.parent / named, Path(named))):
        if path.is_file():
            return path
    raise ExperimentError(
        f"{source}: {key}: there is no file {named}, neither beside the experiment file nor in the current folder"
    )


def _check_module(place: str, source: Path) -> None:
    top = place.split(".")[0]
    here = Path(top)
    if here.is_dir() or here.with_suffix(".py").is_file() or top in sys.modules:
        return
    if importlib.util.find_spec(top) is None:
        raise ExperimentError(
            f"{source}: job.module: there is no module {top!r}, neither installed nor in the current folder; "
            f"a file is named by its path, as in {top}.py:attribute"
        )


def _check_name(file: Path, name: str, source: Path) -> None:
    """Refuse a name that the file cannot define. Whether a file is Python at all, workers say."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Name(id=text, ctx=ast.Store()):
                names.add(text)
            case ast.alias():
                names.add((node.asname or node.name).split(".")[0])
    if name not in names and not names & {"*", "__getattr__", "globals", "exec"}:
        raise ExperimentError(
            f"{source}: job.module: {file} has no {name!r}{did_you_mean(name, sorted(names))}"
        )
