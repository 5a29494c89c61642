"""``python -m psworker.script PARENT FILE [ARGUMENT...]``: a training script as a worker of `ps-lab run --script`.

The script runs as `python FILE ARGUMENT...` would run it. Beside that, this process ends with PARENT, the process
that started it, leaves the job when it is told to end, and says in its exit code what went wrong.
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
    """Run the script, then exit with one of `ExitCode`, or with the code that the script chose itself."""
    exit_on_sigterm()
    # Without a Leave, behind which the others would go on: they end with this one.
    die_with(int(parent), signal.SIGKILL)
    sys.argv = [file, *arguments]
    # `-m` has put the current directory there.
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
        # As the interpreter does: what ends with this process sees that it did not end well.
        sys.last_value = error
        sys.excepthook(*sys.exc_info())
        sys.exit(int(ExitCode.JOB_FAILED))
    session = sys.modules.get("psworker.session")
    if session is None or not session.Session.opened:
        _fail(
            f"{file} ended, and nothing was trained on the servers: expected psworker.keras.distribute(model) "
            "after model.compile(...), and data for its fit",
            ExitCode.JOB_FAILED,
        )


def _run(file: str) -> None:
    """Raises what the script raises; SystemExit only where it tells of a failure."""
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
    # The script's imports find this module's own name free.
    sys.modules.pop("psworker.script", None)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main(*sys.argv[1:])
