"""``python -m psworker.script PARENT FILE [ARGUMENT...]``: a training script as a worker of `ps-lab run --script`.

The script runs as by `python FILE ARGUMENT...`. In addition this process ends with PARENT, the process that started it,
leaves the job on SIGTERM, and reports failures by its exit code.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from pswire.command.process import die_with, exit_on_sigterm
from pswire.exits import ExitCode
from pswire.logs.events import last_words
from psworker.errors import Diverged, JobOver, Refused, SessionError, Unreachable, Unsupported, Untrusted


def main(parent: str, file: str, *arguments: str) -> None:
    """Run the script, then exit with one of `ExitCode`, or with the script's own exit code."""
    exit_on_sigterm()
    # SIGKILL, so that this worker sends no Leave, after which the others would go on without it.
    die_with(int(parent), signal.SIGKILL)
    sys.argv = [file, *arguments]
    # `-m` has put the current directory into sys.path[0].
    sys.path[0] = str(Path(file).resolve().parent)
    try:
        _run(file)
    except JobOver as over:
        print(f"nothing is left to do: {over}", flush=True)
        sys.exit(int(ExitCode.OK))
    except (SessionError, Unsupported) as error:
        sys.last_value = error
        _fail(str(error), _code(error))
    except KeyboardInterrupt:
        _fail("interrupted", ExitCode.INTERRUPTED)
    except Exception as error:
        # As the interpreter does, so that exit handlers see that the process failed.
        sys.last_value = error
        sys.excepthook(*sys.exc_info())
        sys.exit(int(ExitCode.JOB_FAILED))
    link = sys.modules.get("psworker.link")
    if link is None or not link.Link.opened:
        _fail(
            f"{file} ended, and nothing was trained on the servers: expected psworker.keras.distribute(model) "
            "after model.compile(...), and data for its fit",
            ExitCode.JOB_FAILED,
        )


def _run(file: str) -> None:
    """Run the file. Raises what it raises, except a SystemExit that reports success."""
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _code(error: Exception) -> ExitCode:
    if isinstance(error, Unreachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    if isinstance(error, Untrusted):
        return ExitCode.UNTRUSTED
    if isinstance(error, Unsupported):
        return ExitCode.JOB_FAILED
    return ExitCode.DIVERGED if isinstance(error, Diverged) else ExitCode.INTERNAL


def _fail(message: str, code: ExitCode) -> None:
    last_words("ps-worker", message, int(code))
    sys.exit(int(code))


if __name__ == "__main__":
    # The script may import this module under its own name.
    sys.modules.pop("psworker.script", None)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(*sys.argv[1:])
