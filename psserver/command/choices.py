"""From what the command line and the environment say to the `Options` of one server."""

import os
from typing import Any

from psserver.settings import Options, SettingsError
from pswire.command.task_index import chosen_task_index
from pswire.config.overrides import overrides_of

# Options that are short for a key of the experiment file.
SHORTCUTS = {
    "policy": "policy.name",
    "optimizer": "optimizer.name",
    "learning_rate": "optimizer.learning_rate",
    "workers": "cluster.workers",
    "min_workers": "cluster.min_workers",
    "max_workers": "cluster.max_workers",
    "allowed_workers": "cluster.allowed_workers",
    "versions": "run.versions",
    "seed": "run.seed",
    "checkpoint_every": "run.checkpoint_every",
    "keep": "run.keep",
    "rescue": "run.rescue",
    "allow_missing": "cluster.allow_missing",
    "transport": "cluster.transport",
    "worker_timeout": "cluster.worker_timeout",
    "idle_timeout": "cluster.idle_timeout",
    "ticket_timeout": "cluster.ticket_timeout",
    "recover_timeout": "cluster.recover_timeout",
    "nonfinite_limit": "cluster.nonfinite_limit",
}


def chosen_options(given: dict[str, Any], overrides: tuple[str, ...], no_out: bool) -> Options:
    """`given`: by parameter of the command. Raises SettingsError, AddressError."""
    # No name given is no list, which would replace that of the experiment file.
    given["allowed_workers"] = given["allowed_workers"] or None
    for seconds in ("ticket_timeout", "recover_timeout"):
        if given[seconds] is not None:
            given[seconds] = number_or_text(given[seconds])
    shortcuts = overrides_of({key: given.pop(name) for name, key in SHORTCUTS.items()})
    secret = os.environ.get("PS_JOB_SECRET", "")
    given["task_index"] = chosen_task_index(given["task_index"], "ps-server")
    options = Options(overrides=(*shortcuts, *overrides), job_secret=secret, environment=os.environ, **given)
    if no_out and options.out is not None:
        raise SettingsError("--out and --no-out exclude each other")
    return options


def number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
