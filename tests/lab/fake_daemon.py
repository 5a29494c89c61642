"""Stands in for ps-server and ps-worker: the same command line and JSON lines, no training.

    python fake_daemon.py server|worker BEHAVIOUR --ps-hosts ... --task-index ... [...]

A server says ready, waits for `cluster.workers` workers to come and go, and exits 0. A worker visits
every server. BEHAVIOUR changes that; "crash@1" is the behaviour of task 1 only.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def behaviour_of_task() -> str:
    """What this task is to do; "ok" when the word is for another task."""
    word, _, task = sys.argv[2].partition("@")
    return word if not task or task == option("--task-index") else "ok"


def serve(behaviour: str) -> int:
    if behaviour == "in-use":
        print("ps-server: the address is in use", file=sys.stderr)
        return 4
    if behaviour == "mute":
        wait_for_ever()
    workers = tomllib.loads(Path(option("--config")).read_text())["cluster"]["workers"]
    if behaviour == "saving":
        # Before anybody hears of it, and may tell it to end: that alone does not end it.
        signal.signal(signal.SIGTERM, lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        say("ready", address=f"{host}:{port}", pid=os.getpid(), hosts=option("--ps-hosts"))
        if behaviour == "warn":
            say("warning", text="passed over checkpoint 7: it is damaged")
        if behaviour == "stay":
            wait_for_ever()
        if behaviour == "saving":
            return save(listener, workers)
        if behaviour == "die":
            listener.accept()
            print("ps-server: cannot go on", file=sys.stderr)
            say("stopped", reason="an update is not finite", exit_code=8)
            return 8
        for _ in range(workers):
            visit(listener)
        if behaviour == "still":
            os.kill(os.getpid(), signal.SIGSTOP)
    say("stopped", reason="all workers are done")
    return 0


def save(listener: socket.socket, workers: int) -> int:
    """Told to end, it is not done with that before its workers have ended."""
    for _ in range(workers):
        visit(listener)
    say("saved")
    return 143


def visit(listener: socket.socket) -> None:
    """One worker from its Join to its Leave. A connection without a greeting is no worker's."""
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(1) != b"w":
                continue
            while connection.recv(64):
                pass
            return


def work(behaviour: str) -> int:
    if behaviour == "kill-once" and not (once := Path(option("--config")).with_name("killed")).exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    addresses = [address.rsplit(":", 1) for address in option("--ps-hosts").split(",")]
    servers = [socket.create_connection((host, int(port))) for host, port in addresses]
    for server in servers:
        server.sendall(b"w")
    say("started", pid=os.getpid(), tf_config=os.environ.get("TF_CONFIG"))
    if behaviour == "crash":
        # In one piece: `print` writes the line's end by itself, and what was said before may come between.
        sys.stderr.write("Traceback of the job\nValueError: no data\n")
        return 6
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "fertile":
        child = subprocess.Popen(["sleep", "600"])
        say("child", pid=child.pid)
        return 0
    if behaviour in ("hang", "stubborn"):
        say("computing", pid=os.getpid())
        wait_for_ever()
    for server in servers:
        server.close()
    return 0


def wait_for_ever() -> None:
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(serve(behaviour_of_task()) if sys.argv[1] == "server" else work(behaviour_of_task()))
