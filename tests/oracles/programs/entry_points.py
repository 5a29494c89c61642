"""Print, as JSON, what each entry point into a job makes of each setting: {entry: {setting: {way: what}}}.

The session that an entry point would open is replaced by one that notes its arguments, so no server is needed. `way` is
how the setting is given: by an argument, an environment variable or TF_CONFIG. `what` is the value that the session
got, "ignored" if it got the default, or the error.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

HOSTS = "127.0.0.1:7070,127.0.0.1:7071"
TASK = {"cluster": {"ps": HOSTS.split(","), "worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
Given = dict[str, Any]


class Opened(BaseException):
    """A session is opened. It is no Exception, so nothing on its way explains it."""


def numpy_loop(given: Given) -> None:
    import psworker

    psworker.connect(given.pop("hosts", None), {"w": np.zeros(4, np.float32)}, **given)


def fit(given: Given) -> None:
    import keras

    from psworker.keras import distribute

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    distribute(model, given.pop("hosts", None), **given)
    model.fit(np.zeros((4, 4), np.float32), np.zeros((4, 1), np.float32), verbose=0)


def jax_loop(given: Given) -> None:
    import jax.numpy as jnp
    import optax

    from psworker.jax import distribute

    distribute({"w": jnp.zeros(4)}, optax.sgd(0.1), given.pop("hosts", None), **given)


def job(given: Given) -> None:
    from click.testing import CliRunner

    from psworker.cli import main

    flags = {
        "hosts": "ps-hosts",
        "task_index": "task-index",
        "server_timeout": "server-timeout",
        "name": "name",
    }
    line = f"{Path(__file__).with_name('line.py')}:Line"
    options = ["--job", line, "--epochs", "1"]
    for name, value in given.items():
        section = {"wire_dtype": "cluster.wire_dtype", "transport": "cluster.transport"}.get(name)
        flag = flags.get(name, name.replace("_", "-"))
        options += ["--set", f"{section}={value}"] if section else [f"--{flag}", str(value)]
    result = CliRunner().invoke(main, options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    raise ValueError(f"exit {result.exit_code}: {result.output.strip().splitlines()[-1]}")


ENTRIES: dict[str, Callable[[Given], None]] = {
    "connect": numpy_loop, "fit": fit, "jax.distribute": jax_loop, "ps-worker": job,
}  # fmt: skip
PEM = "/no/such/file.pem"
# Setting -> its argument, and its variable in the environment with a text for it.
SETTINGS: dict[str, tuple[Any, str, str]] = {
    "hosts": (HOSTS, "PS_HOSTS", HOSTS),
    "task_index": (1, "PS_TASK_INDEX", "1"),
    "name": ("mine", "", ""),
    "wire_dtype": ("bfloat16", "PS_WIRE_DTYPE", "bfloat16"),
    "transport": ("socket", "PS_TRANSPORT", "socket"),
    "server_timeout": (7.0, "", ""),
    "replicas": (2, "PS_REPLICAS", "2"),
    "tls_ca": (PEM, "PS_TLS_CA", PEM),
}


def found(entry: str, setting: str, given: Given, environment: dict[str, str]) -> str:
    """Return what the session of this entry point gets for the setting."""
    noted: Given = {}

    def opened(where: Any, specs: Any, **rest: Any) -> None:
        noted.update({name: getattr(where, name) for name in SETTINGS if hasattr(where, name)})
        noted.update(credentials=where.credentials, hosts=",".join(map(str, where.hosts)))
        raise Opened

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PS_", "TF_CONFIG"))}
    with (
        mock.patch.dict(os.environ, {**kept, **environment}, clear=True),
        mock.patch("psworker.connecting.Link", opened),
        # Without servers the entry points start one.
        mock.patch("psworker.connection.EmbeddedServer", side_effect=Opened),
    ):
        try:
            ENTRIES[entry](given)
        except Opened:
            return said(setting, noted)
        except BaseException as error:
            text = str(error).splitlines()[0] if str(error) else ""
            return f"{type(error).__name__}: {text}"
    return "no session"


def said(setting: str, noted: Given) -> str:
    if not noted:
        return "a server of its own"
    if setting == "tls_ca":
        return "used" if getattr(noted["credentials"], "encrypted", False) else "ignored"
    value = noted.get(setting)
    if setting == "replicas":
        return "used" if value else "ignored"
    return "used" if value == SETTINGS[setting][0] else f"ignored: {value!r}"


def table(entry: str) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for setting, (argument, variable, text) in SETTINGS.items():
        row = rows[setting] = {}
        hosts = {} if setting == "hosts" else {"hosts": HOSTS}
        if argument is not None:
            row["argument"] = found(entry, setting, {**hosts, setting: argument}, {})
        if variable:
            row["variable, servers by PS_HOSTS"] = found(
                entry, setting, {}, {"PS_HOSTS": HOSTS, variable: text}
            )
            row["variable, servers by argument"] = found(entry, setting, dict(hosts), {variable: text})
        if setting in ("hosts", "task_index"):
            row["TF_CONFIG"] = found(entry, setting, {}, {"TF_CONFIG": json.dumps(TASK)})
    rows["servers"] = {"none named": found(entry, "hosts", {}, {})}
    return rows


if __name__ == "__main__":
    print(json.dumps({entry: table(entry) for entry in sys.argv[1:] or ENTRIES}))
