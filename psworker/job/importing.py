"""Find and import the Python module that holds a user's job."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from pswire.nearest import nearest
from psworker.job.errors import JobError, in_words, user_traceback

_FORMS = "'package.module:attribute' or 'path/to/file.py:attribute'"


def split_target(target: str) -> tuple[str, str]:
    """("module or path", "attribute"); raises JobError when either is missing."""
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise JobError(f"a job is named {_FORMS}, got {target!r}")
    return place, attribute


def import_job_module(place: str) -> ModuleType:
    """Import `place`, a dotted name or the path of a .py file; the current directory is importable.

    Raises JobError, with different words for a module that is not there and
    for one that is there and whose own code raised (then with its traceback).
    """
    _make_importable(Path.cwd())
    if place.endswith(".py") or "/" in place:
        return _import_file(Path(place))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if place == missing or place.startswith(missing + "."):
            raise JobError(_not_found(place, missing)) from error
        raise _raised(place, error) from error
    except Exception as error:
        raise _raised(place, error) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own, with its folder importable as for a script."""
    full = path.resolve()
    if not full.is_file():
        raise JobError(f"no job file {str(path)!r} (looked for {full})")
    _make_importable(full.parent)
    name = f"job_{full.stem}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise JobError(f"{str(path)!r} is not a Python file: a job is named {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _raised(str(path), error) from error
    return module


def _make_importable(folder: Path) -> None:
    """Put `folder` first on the import path, as Python does for a script's own folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()


def _raised(place: str, error: Exception) -> JobError:
    return JobError(f"importing the job module {place!r} raised {in_words(error)}", user_traceback(error))


def _not_found(place: str, missing: str) -> str:
    """The sentence for a module that no import path holds, with the nearest name that is there."""
    package, _, leaf = missing.rpartition(".")
    where = list(sys.modules[package].__path__) if package in sys.modules else [str(Path.cwd())]
    names = [module.name for module in pkgutil.iter_modules(where)]
    near = nearest(leaf, names)
    full = ".".join(filter(None, (package, near)))
    hint = f'; did you mean "{full}"?' if near else ""
    return f"no module {missing!r} to import the job from ({place!r}; looked in {', '.join(where)}){hint}"
