"""The models that are trained with each codec, as experiments on the simulated cluster.

Simulated workers have the bits of real ones, so accuracy needs no link and no quiet machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pswire.config.experiment import Experiment, parse_experiment

Sections = Mapping[str, Mapping[str, Any]]
WORKERS = 4
CODECS = ("float32", "bfloat16", "int8", "int4", "top-k")


@dataclass(frozen=True, slots=True)
class Task:
    """`sections` of the experiment file; `own`: those of single rows, by name. `measures`: with the wanted one first.

    `seeded`: the problem's initial values come from an option of their own.
    """

    name: str
    sections: Sections
    measures: tuple[str, ...]
    rows: Mapping[str, Sections]
    seeded: bool = False

    def experiment(self, row: str, seed: int) -> Experiment:
        """Return the experiment of one row of the task's table."""
        document: dict[str, dict[str, Any]] = {"run": {"name": "codecs", "seed": seed}}
        parts = [{"cluster": {"workers": WORKERS, "worker_timeout": 60.0}}, self.sections, self.rows[row]]
        if self.seeded:
            parts.append(
                {"simulation": {"options": {**self.sections["simulation"]["options"], "seed": seed}}}
            )
        for part in parts:
            for section, values in part.items():
                document[section] = {**document.get(section, {}), **values}
        return parse_experiment(document, f"{self.name}, {row}")


def _wire(name: str) -> dict[str, dict[str, Any]]:
    return {"cluster": {"wire_dtype": name}}


def _sgd(rate: float) -> dict[str, Any]:
    return {"name": "sgd", "learning_rate": rate}


def _markov(steps: int, **options: int) -> dict[str, Any]:
    options = {"steps": steps, **options}
    return {
        "problem": "benchmarks.codecs.markov:MarkovChain",
        "options": options,
        "compute": "constant(0.05)",
    }


_SYNC = {"policy": {"name": "sync"}}
# Batches of a worker that make a round, and in all, by the task's name.
ROUND = 50
LOCAL_STEPS = {"Markov chain, DiLoCo": 300, "Markov chain, DiLoCo, long": 2000}
# The paper's outer optimizer.
NESTEROV = {"name": "nesterov", "learning_rate": 0.7, "momentum": 0.9}
_DILOCO = {"name": "diloco", "steps": ROUND, "learning_rate": 0.001}
# Groups of rows that take turns, and batches of a round.
FRAGMENTS = ((1, 48), (2, 24), (4, 12), (2, 48), (4, 48))
# Steps that a worker goes on while its payload travels, what it keeps of its own weights, groups, batches of a round.
OVERLAPS = {
    "8 steps ahead": {"overlap": 8, "mixing": 0.5},
    "8 steps ahead, mixing 0": {"overlap": 8},
    "2 groups": {"fragments": 2, "steps": 25},
    "2 groups, 4 steps ahead": {"fragments": 2, "steps": 25, "overlap": 4, "mixing": 0.5},
}

TASKS = (
    Task(
        "CNN on digits",
        {
            **_SYNC,
            "optimizer": _sgd(0.1),
            "job": {"module": "examples/digits_cnn.py:DigitsCNN", "epochs": 16},
        },
        ("accuracy", "loss"),
        {name: _wire(name) for name in CODECS},
    ),
    Task(
        "Markov chain, 1M parameters",
        {**_SYNC, "optimizer": _sgd(3.0), "simulation": _markov(200)},
        ("excess",),
        {name: _wire(name) for name in (*CODECS, "top-k/top-k", "top-k-forgetful")},
        seeded=True,
    ),
    Task(
        "text, LSTM",
        {
            **_SYNC,
            "optimizer": _sgd(1.0),
            "job": {"module": "benchmarks/codecs/text.py:Text", "epochs": 10},
        },
        ("accuracy", "loss"),
        {name: _wire(name) for name in CODECS},
    ),
    *(
        Task(
            name,
            {"policy": _DILOCO, "simulation": {**_markov(steps), "evaluate": 1}},
            ("excess",),
            {
                "float32, Nesterov outside": {"optimizer": NESTEROV},
                "float32, SGD outside": {"optimizer": _sgd(1.0)},
                "int4/int4, SGD outside": {**_wire("int4/int4"), "optimizer": _sgd(1.0)},
                "top-k/int4, SGD outside": {**_wire("top-k/int4"), "optimizer": _sgd(1.0)},
            },
            seeded=True,
        )
        for name, steps in LOCAL_STEPS.items()
    ),
    Task(
        "Markov chain, overlap",
        {"policy": _DILOCO, "simulation": _markov(300)},
        ("excess",),
        {
            **{
                f"float32, {outside['name']} outside, {name}": {"optimizer": outside, "policy": knobs}
                for outside in (NESTEROV, _sgd(1.0))
                for name, knobs in OVERLAPS.items()
            },
            "int4/int4, sgd outside, 8 steps ahead": {
                **_wire("int4/int4"),
                "optimizer": _sgd(1.0),
                "policy": OVERLAPS["8 steps ahead"],
            },
            "int4, sgd outside, 2 groups, 4 steps ahead": {
                **_wire("int4"),
                "optimizer": _sgd(1.0),
                "policy": OVERLAPS["2 groups, 4 steps ahead"],
            },
        },
        seeded=True,
    ),
    Task(
        "Markov chain, 0.26M parameters, fragments",
        {"policy": _DILOCO, "optimizer": _sgd(1.0), "simulation": _markov(2880, hidden=1344)},
        ("excess",),
        {
            f"{wire}, P = {fragments}, {steps} batches": {
                **_wire(wire),
                "policy": {"fragments": fragments, "steps": steps},
            }
            for wire in ("float32", "int4")
            for fragments, steps in FRAGMENTS
        },
        seeded=True,
    ),
)
