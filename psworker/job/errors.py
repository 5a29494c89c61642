"""Imports of a user's job, and errors of its code, kept apart from errors of the worker."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pswire.nearest import nearest
from psworker.errors import Unsupported

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OURS = str(Path(__file__).resolve().parent)


class JobError(Exception):
    """A job cannot be loaded, or its code raised.

    The message says what was expected and what was got. `details` is the traceback of the user's own code, or empty.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def user_traceback(error: BaseException) -> str:
    """Return the traceback of `error` without the frames of this package and of the import machinery."""
    trace = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = trace
    while link is not None:
        kept = [frame for frame in link.stack if not _is_ours(frame.filename)]
        link.stack = traceback.StackSummary.from_list(kept)
        link = link.__cause__ or link.__context__
    return _COLOUR.sub("", "".join(trace.format())).rstrip()


def in_words(error: BaseException) -> str:
    """Return an exception as one line: "ValueError: shapes differ".

    TensorFlow puts the place before the reason: after "in user code:" the reason is the first line after the frames,
    with its type; after "Graph execution error:" it is the last line without a node's name.
    """
    lines = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if lines and lines[0] == "in user code:":
        frames = [number for number, line in enumerate(lines) if line.startswith("    File ")]
        after = [line for line in lines[frames[-1] + 1 :] if not line.startswith("     ")] if frames else []
        return after[0].strip() if after else lines[-1].strip()
    if lines and lines[0] == "Graph execution error:":
        reasons = [line.strip() for line in lines if "{{node" not in line]
        return f"{type(error).__name__}: {reasons[-1]}"
    if len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]  # Keras puts the place before the reason
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


@contextmanager
def blame(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a `JobError` that names the part of the job: `what`; also one of ours,
    of what servers cannot do."""
    try:
        yield
    except JobError:
        raise
    except Unsupported as error:
        raise JobError(f"{what}: {error}") from error
    except Exception as error:
        raise JobError(f"{what} raised {in_words(error)}", user_traceback(error)) from error


def _is_ours(filename: str) -> bool:
    """Whether a frame is of no use to the job's author: ours, TensorFlow's generated code, or one that re-raises."""
    if "__autograph_generated_file" in filename:
        return True
    if filename.endswith(("/traceback_utils.py", "/importlib/__init__.py")):
        return True
    return filename.startswith((_OURS, "<frozen importlib"))


_FORMS = "'package.module:attribute' or 'path/to/file.py:attribute'"


def split_target(target: str) -> tuple[str, str]:
    """Split into ("module or path", "attribute"). Raises JobError if either is missing."""
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise JobError(f"a job is named {_FORMS}, got {target!r}")
    return place, attribute


def import_job_module(place: str) -> ModuleType:
    """Import `place`, a dotted name or the path of a .py file; the current directory is importable.

    Raises JobError, which distinguishes a missing module from one whose own code raised (then with its traceback).
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
    """Return the message for a module on no import path, with the nearest name that exists."""
    package, _, leaf = missing.rpartition(".")
    where = list(sys.modules[package].__path__) if package in sys.modules else [str(Path.cwd())]
    names = [module.name for module in pkgutil.iter_modules(where)]
    near = nearest(leaf, names)
    full = ".".join(filter(None, (package, near)))
    hint = f'; did you mean "{full}"?' if near else ""
    return f"no module {missing!r} to import the job from ({place!r}; looked in {', '.join(where)}){hint}"
