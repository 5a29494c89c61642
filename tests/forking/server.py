"""A fork server: it has imported what the commands need, so that a command starts in milliseconds and not in seconds.

Each request names a command line, a folder, an environment and three files. The server forks twice, and the process
that stands between the two ends at once: the command becomes a child of whoever asks (see `popen`), as any process
that it starts itself. It then runs the same `__main__` with the same arguments and search path as `ps-lab` (say),
`python -m MODULE` or `python SCRIPT.py`.

The requester holds the other end of the socket; the server ends with it.
"""

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

# Of one request: a command line and an environment.
LARGEST = 256 * 1024

# What servers and workers without TensorFlow import, and what the other commands and a user's scripts do.
LIGHT = (
    "psserver.serving",
    "psserver.cli",
    "psserver.service.life.replicating",
    "psserver.service.server",
    "psworker.loop",
    "tests.probes",
)
FULL = (
    *LIGHT,
    *(
        "psworker.keras",
        "psworker.keras.jobs.trainer",
        "psworker.cli",
        "psworker.script",
        "keras",
        "tensorflow",
    ),
    *("pslab.cli", "pslab.launch.experiments", "sklearn.datasets"),
)


@dataclass(frozen=True)
class Command:
    """What to run: `words` as they stand behind the interpreter's name. `script`: the folder of the installed
    command that was named, which is the first on its search path; "" for `python -m MODULE`."""

    words: list[str]
    script: str
    folder: str
    environment: dict[str, str]
    new_session: bool

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def main(number: int, modules: Sequence[str]) -> None:
    """Serve on the socket of this number. In a fork: run the command to its end."""
    channel = socket.socket(fileno=number)
    for module in modules:
        importlib.import_module(module)
    load_compiler()
    # What is there now lives as long as the process: no collection need look at it, nor copy its pages.
    gc.collect()
    gc.freeze()
    command = serve(channel)
    if command is not None:
        run(command)


def load_compiler() -> None:
    """With what most servers run: to load the compiler and these loops is most of what the start of one takes."""
    from psserver.fast import prepare
    from psserver.optimizers import build
    from psserver.shard.arithmetic import LOOPS

    prepare([*build({"name": "sgd"}).variants(), *((loop, loop.letters) for loop in LOOPS)])


def serve(channel: socket.socket) -> Command | None:
    """Fork for each request. Returns in the fork, which has become the command but for its code; None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not message:
            return None
        command = Command(**json.loads(message))
        told, tell = os.pipe()
        waits, go = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)
            if command.new_session:
                os.setsid()
            os.write(tell, str(os.getpid()).encode())
            # Until this process has its new parent.
            os.read(waits, 1)
            for pipe in (told, tell, waits, go):
                os.close(pipe)
            channel.close()
            become(command, files)
            return command
        pid = os.read(told, 20)
        os.waitpid(between, 0)
        os.write(go, b"!")
        for file in (told, tell, waits, go, *files):
            os.close(file)
        channel.send(pid)


def become(command: Command, files: Sequence[int]) -> None:
    """The standard files, folder, environment, arguments and search path of the command."""
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(command.folder)
    os.environ.clear()
    os.environ.update(command.environment)
    direct = bool(command.environment.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False, encoding="utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(number, "wb", 0 if direct else -1, closefd=False),
            encoding="utf-8",
            errors=errors,
            line_buffering=number == 2,
            write_through=direct,
        )
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    if command.words[0] == "-m":
        sys.argv = command.words[1:]
        sys.path[0] = command.script or command.folder
    else:
        sys.argv = command.words
        sys.path[0] = str(Path(command.words[0]).resolve().parent)


def run(command: Command) -> NoReturn:
    """As the interpreter does, in the module `__main__`, and end.

    The end waits for threads and runs what `atexit` has, but does not take modules and C++ libraries apart: that is
    the better part of a second with TensorFlow.
    """
    code: object = 0
    try:
        execute(command)
    except SystemExit as end:
        code = end.code or 0
    except KeyboardInterrupt:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it has gone: so it is at the interpreter's end.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 255)


def execute(command: Command) -> None:
    if command.words[0] == "-m":
        if command.words[1] == "pslab":
            serve_children()
        runpy._run_module_as_main(command.words[1])  # type: ignore[attr-defined]
    else:
        serve_children()
        runpy.run_path(command.words[0], run_name="__main__")


def serve_children() -> None:
    """What this process starts is forked too: by a fork of its own, made while it has one thread still."""
    from tests.forking import popen

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        theirs.close()
        popen.use(popen.Forks(ours))
        return
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    os.close(nothing)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    command = serve(theirs)
    if command is None:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    run(command)
