"""Optimizers and learning-rate schedules, from their rules' docstrings and knobs."""

from docs.generate.docstrings import escaped, paragraphs
from docs.generate.table import code, table
from psserver import optimizers
from psserver.optimizers import Description
from pswire.knobs import toml

INTRODUCTION = """# Optimizers

They run on the servers, in one pass over memory per update, with Keras's formulas and defaults; tests compare them with
Keras. `--optimizer NAME` chooses one for `ps-server`, `[optimizer]` in an experiment file. Learning rates are functions
of the global version, so every server is at the same point of a schedule. `clipvalue`, `clipnorm` and
`global_clipnorm`, at most one of them, clip the mean gradient before the update; `clipnorm` needs each variable whole
on one server, `global_clipnorm` one server. [Inside a
server](design/server.md#optimizers) explains how they run."""

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
        parts += _section("##", optimizers.describe(name))
    parts.append(SCHEDULES_INTRODUCTION)
    for name in optimizers.schedule_names():
        parts += _section("###", optimizers.describe_schedule(name))
    return {"optimizers.md": "\n\n".join(parts) + "\n"}


def _section(level: str, about: Description) -> list[str]:
    rows = [
        (
            code(knob.name),
            "required" if knob.required else code(toml(knob.default)),
            escaped(knob.domain.describe()),
            escaped(knob.meaning),
        )
        for knob in about.knobs
    ]
    return [
        f"{level} {code(about.name)}",
        escaped(about.summary),
        *paragraphs(about.notes),
        table(("knob", "default", "range", "meaning"), rows),
    ]
