"""What goes wrong inside a user's job, told apart from what goes wrong inside the worker."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OURS = str(Path(__file__).resolve().parent)


class JobError(Exception):
    """A job cannot be loaded, or its code raised.

    ``str()`` is one message that says what was expected and what was got;
    `details` is the traceback of the user's own code, or empty.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def user_traceback(error: BaseException) -> str:
    """The traceback of `error` without the frames of this package and of the import machinery."""
    trace = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = trace
    while link is not None:
        kept = [frame for frame in link.stack if not _is_ours(frame.filename)]
        link.stack = traceback.StackSummary.from_list(kept)
        link = link.__cause__ or link.__context__
    return _COLOUR.sub("", "".join(trace.format())).rstrip()


def in_words(error: BaseException) -> str:
    """An exception on one line: "ValueError: shapes differ".

    TensorFlow puts the place before the reason: below "in user code:" the
    reason is the first line after the frames (and says the type itself), below
    "Graph execution error:" it is the last line but for the node's name.
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
        del lines[0]  # Keras says where before it says what
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


@contextmanager
def blame(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a `JobError` that says which part of the job raised it."""
    try:
        yield
    except JobError:
        raise
    except Exception as error:
        raise JobError(f"{what} raised {in_words(error)}", user_traceback(error)) from error


def _is_ours(filename: str) -> bool:
    """Also TensorFlow's generated code and the frames by which it re-raises: they say nothing about a job."""
    if "__autograph_generated_file" in filename:
        return True
    if filename.endswith(("/traceback_utils.py", "/importlib/__init__.py")):
        return True
    return filename.startswith((_OURS, "<frozen importlib"))
