"""The experiments of a sweep: every combination of the varied values, each with several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from pswire.config.experiment import Experiment, ExperimentError, load_experiment
from pswire.config.overrides import parse_value
from pswire.config.toml import read_toml


class SweepError(ValueError):
    """A --vary that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment of a sweep. `name`: that of its run folder; `overrides`: as for ``ps-lab run --set``."""

    name: str
    overrides: tuple[str, ...]
    experiment: Experiment


def vary(text: str) -> list[str]:
    """``key=v1,v2`` as overrides ``key=v1``, ``key=v2``. Commas inside TOML arrays, tables and strings do not separate.

    The key may be a section whose values are tables: ``policy={name = "sync"},{name = "k-sync", aggregate = 4}``.
    Raises SweepError.
    """
    key, equals, values = text.partition("=")
    parts = _split(values)
    tables = all(part.strip().startswith("{") for part in parts)
    if not equals or not ("." in key or tables) or not all(part.strip() for part in key.split(".")):
        raise SweepError(f"expected section.key=v1,v2,... (policy.max_staleness=0,1,2, say), got {text!r}")
    if not all(part.strip() for part in parts):
        raise SweepError(f"{text!r}: expected a value between every two commas, got none")
    found = [f"{key.strip()}={part.strip()}" for part in parts]
    if len(set(found)) != len(found):
        raise SweepError(f"{text!r}: names a value twice")
    return found


def _split(values: str) -> list[str]:
    """At the commas where each part by itself is a TOML value, or else at every comma (bare words)."""
    pieces, parts = values.split(","), list[str]()
    for piece in pieces:
        # An opened bracket or quote, or table, goes on behind the comma.
        if parts and _open(parts[-1]):
            parts[-1] += "," + piece
        else:
            parts.append(piece)
    return parts


def _open(text: str) -> bool:
    begins = text.strip()[:1]
    if begins not in ("[", "{", '"', "'"):
        return False
    try:
        read_toml(f"value = {text}")
    except ValueError:
        return True
    return False


def cells(path: Path, overrides: Sequence[str], varied: Sequence[str], repeat: int) -> list[Cell]:
    """Every experiment, seeds innermost. Raises SweepError and ExperimentError, before anything runs.

    Seeds count from the experiment's own; workers that share a seed see the
    same data in the same order under every policy.
    """
    axes = [vary(text) for text in varied]
    base = load_experiment(path, overrides)
    found = []
    for chosen in product(*axes):
        for number in range(repeat):
            seed = base.run.seed + number
            all_overrides = (*overrides, *chosen, f"run.seed={seed}")
            name = _name([*chosen, f"run.seed={seed}"])
            experiment = load_experiment(path, all_overrides)
            _check_policy(experiment)
            found.append(Cell(name, all_overrides, experiment))
    return found


def _check_policy(experiment: Experiment) -> None:
    """A built-in policy with its knobs; a user's own is code, and the engine's to import."""
    policy, cluster = experiment.policy, experiment.cluster
    if ":" in policy.name:
        return
    try:
        build_policy(policy.name, policy.knobs, cluster.workers, cluster.servers)
    except PolicyError as error:
        raise ExperimentError(str(error)) from error


def _name(settings: Sequence[str]) -> str:
    """``max_staleness=2,seed=1``, with nothing in it that a file system would not take."""
    pairs = (setting.partition("=") for setting in settings)
    text = ",".join(_part(key.rpartition(".")[2], parse_value(value), value) for key, _, value in pairs)
    return "".join(letter if letter.isalnum() or letter in "=,._-+" else "_" for letter in text)


def _part(key: str, value: object, text: str) -> str:
    """``policy={name = "k-sync", aggregate = 4}`` is ``k-sync,aggregate=4``."""
    if not isinstance(value, dict) or "name" not in value:
        return f"{key}={text}"
    rest = [f"{name}={inner}" for name, inner in value.items() if name != "name"]
    return ",".join([str(value["name"]), *rest])
