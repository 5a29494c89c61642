"""Addresses of the servers, from the caller or the environment, and a server that this process starts itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pswire.addresses import Address, AddressError, parse_address, parse_hosts
from pswire.command.task import cluster_from_tf_config
from pswire.environment import warn_of_misspelt
from pswire.model.plan import parts_of
from pswire.security.settings import PERSONAL
from psworker.errors import Unsupported

# Seconds. A server starts in about one, on a busy machine in several, and ends by itself when its job is over.
START, END = 60.0, 10.0


class EmbeddedServerError(Unsupported, RuntimeError):
    """The embedded server did not start; the text has its output."""


@dataclass(frozen=True)
class Place:
    """Addresses of the servers, and this worker's task index if the environment says it.

    `wire_dtype`, `transport`: of the run that started this process; empty without one. `replicas`: whether the servers
    hold copies of one job.
    """

    hosts: tuple[Address, ...]
    task_index: int | None = None
    wire_dtype: str = ""
    transport: str = ""
    replicas: bool = False

    @property
    def parts(self) -> int:
        """Parts into which the model is cut."""
        return parts_of(len(self.hosts), 2 if self.replicas else 1)


def find_servers(
    hosts: str | Sequence[str | Address] | None, environment: Mapping[str, str], **own: object
) -> Place | None:
    """Return the servers of `hosts`, else PS_HOSTS, else TF_CONFIG; None if none of them is set.

    `own`: settings for a server that this process would start; None where the caller gave none. Raises AddressError,
    and ValueError if servers run already and a setting is given.
    """
    warn_of_misspelt(os.environ)
    place = _named(hosts, environment)
    for name, value in own.items():
        if place is not None and value is not None:
            raise ValueError(
                f"{name}={value!r} is for a server that is started here, and servers run already, at "
                f"{','.join(map(str, place.hosts))}: expected no {name} here; give it to ps-server or ps-lab run"
            )
    return place


def _named(hosts: str | Sequence[str | Address] | None, environment: Mapping[str, str]) -> Place | None:
    if hosts is not None:
        given = parse_hosts(hosts if isinstance(hosts, str) else ",".join(map(str, hosts)))
        return Place(given, replicas=_replicas(environment))
    if environment.get("PS_HOSTS"):
        wire_dtype, transport = (environment.get(name, "") for name in ("PS_WIRE_DTYPE", "PS_TRANSPORT"))
        hosts = parse_hosts(environment["PS_HOSTS"])
        return Place(hosts, _index(environment), wire_dtype, transport, _replicas(environment))
    if not environment.get("TF_CONFIG"):
        return None
    cluster = cluster_from_tf_config(environment["TF_CONFIG"])
    if cluster.task_type != "worker":
        raise AddressError(
            f"TF_CONFIG: task.type: expected worker or chief, got {cluster.task_type}: a server is started with the "
            "ps-server command"
        )
    return Place(cluster.ps, cluster.task_index, replicas=_replicas(environment))


def _replicas(environment: Mapping[str, str]) -> bool:
    text = environment.get("PS_REPLICAS", "1")
    if text not in ("1", "2"):
        raise AddressError(f"PS_REPLICAS: expected 1 or 2, got {text[:40]!r}")
    return text == "2"


def _index(environment: Mapping[str, str]) -> int | None:
    text = environment.get("PS_TASK_INDEX", "")
    if text and not (text.isdecimal() and len(text) < 10):
        raise AddressError(f"PS_TASK_INDEX: expected a number from 0, got {text[:40]!r}")
    return int(text) if text else None


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
