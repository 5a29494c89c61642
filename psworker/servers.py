"""A server that a worker's process starts for itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pswire.addresses import Address, parse_address
from pswire.security.settings import PERSONAL
from psworker.errors import Unsupported

# Seconds. A server starts in about one, on a busy machine in several, and ends by itself when its job is over.
START, END = 60.0, 10.0


class EmbeddedServerError(Unsupported, RuntimeError):
    """The embedded server did not start; the text has its output."""


class EmbeddedServer:
    """A `ps-server` on loopback for this process alone. It ends with this process, however that ends."""

    def __init__(self, optimizer: Mapping[str, Any], policy: str, seed: int, out: Path | None) -> None:
        """Start it and wait for its address. Raises EmbeddedServerError."""
        self._log = tempfile.TemporaryFile()
        # The default under fit (`Experiment`), although a single worker has nothing to weigh.
        weight = {"weight": "samples"} if policy == "sync" else {}
        settings = {
            "policy": {"name": policy, **weight},
            "optimizer": dict(optimizer),
            "run": {"seed": seed},
        }
        command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--json"]
        command += ["--parent", str(os.getpid()), *(f"--set={text}" for text in overrides(settings))]
        # No run folder by default: the model is in this process.
        command += ["--no-out"] if out is None else ["--out", str(out)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # It listens on loopback for this process, and does not need the identity that other servers know.
            env={name: value for name, value in os.environ.items() if name not in PERSONAL},
            # Only this process handles a Ctrl-C on the terminal.
            start_new_session=True,
        )
        ready: list[Address] = []
        announced = threading.Event()
        threading.Thread(target=self._read, args=(ready, announced), daemon=True).start()
        announced.wait(START)
        if not ready:
            self._process.kill()
            self._process.wait()
            output = self.tail()
            self._log.close()
            raise EmbeddedServerError(f"the embedded ps-server did not start:\n{output}")
        self.address = ready[0]

    def _read(self, ready: list[Address], announced: threading.Event) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                event = json.loads(line)
                if event.get("event") == "ready":
                    ready.append(parse_address(event["address"]))
                    announced.set()
        announced.set()

    def tail(self, lines: int = 12) -> str:
        """Return the end of its standard error."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-lines:])

    @property
    def code(self) -> int | None:
        """The exit code; None while the server runs."""
        return self._process.poll()

    def end(self) -> None:
        """End the server now, whatever its job does."""
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def close(self) -> int:
        """Wait until the server ends with its job, or end it after a while. Returns the exit code."""
        try:
            return self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            return self._process.wait()
        finally:
            self._log.close()


def overrides(settings: Mapping[str, Any], path: str = "") -> list[str]:
    """Return key=value for every leaf, for ps-server's --set: JSON strings, numbers and lists are also TOML."""
    found = []
    for key, value in settings.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found += overrides(value, name)
        else:
            found.append(f"{name}={json.dumps(value)}")
    return found
