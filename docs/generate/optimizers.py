"""Optimizers and learning-rate schedules, from their rules' docstrings and knobs."""

import inspect

from docs.generate.docstrings import escaped, paragraphs
from docs.generate.table import code, table, toml
from psserver import optimizers
from psserver.optimizers.registry import RULES, Description
from psserver.optimizers.schedules import SCHEDULES

INTRODUCTION = """# Optimizers

They run on the servers, in one pass over memory per update, with Keras's formulas and defaults; tests compare them with
Keras. `--optimizer NAME` chooses one for `ps-server`, `[optimizer]` in an experiment file. Learning rates are functions
of the global version, so every server is at the same point of a schedule. How they run is in
[Shards and optimizers](design/shard.md#optimizers)."""

SCHEDULES_INTRODUCTION = """## Learning-rate schedules

A schedule is a table in place of the number. `version` is the number of updates so far.

```toml
[optimizer]
name = "adam"
learning_rate = {schedule = "cosine", initial_learning_rate = 0.001, decay_steps = 1000}
```"""


def pages() -> dict[str, str]:
    parts = [INTRODUCTION]
    for name in optimizers.names():
        module = inspect.getmodule(RULES[name])
        parts += _section("##", optimizers.describe(name), module.__doc__ if module else None)
    parts.append(SCHEDULES_INTRODUCTION)
    for name in optimizers.schedule_names():
        parts += _section("###", optimizers.describe_schedule(name), SCHEDULES[name].__doc__)
    return {"optimizers.md": "\n\n".join(parts) + "\n"}


def _section(level: str, about: Description, documentation: str | None) -> list[str]:
    rows = [
        (
            code(knob.name),
            "required" if knob.required else "none" if knob.default is None else code(toml(knob.default)),
            escaped(knob.domain),
            escaped(knob.doc),
        )
        for knob in about.knobs
    ]
    return [
        f"{level} {code(about.name)}",
        *paragraphs(documentation),
        table(("knob", "default", "range", "meaning"), rows),
    ]
