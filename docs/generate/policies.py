"""Policies: an overview, and one page for each, from the data beside their code."""

import inspect

from docs.generate.docstrings import escaped, paragraphs
from docs.generate.table import code, table, toml
from psserver.policies.builtin import SHELF, PolicySpec, knobs_of


def pages() -> dict[str, str]:
    found = {"policies/README.md": _overview()}
    return found | {f"policies/{name}.md": _page(name, entry) for name, entry in SHELF.items()}


def _overview() -> str:
    rows = [
        (f"[`{name}`]({name}.md)", _rule(entry)[0], escaped(entry.guarantee)) for name, entry in SHELF.items()
    ]
    return (
        "# Policies\n\n"
        "A policy decides which worker may start, which gradients make an update, and what becomes of a late one.\n"
        "These are built in. `--policy NAME` chooses one for `ps-server`, `[policy] name` in an experiment file;\n"
        "`ps-lab policies NAME` explains it in the terminal. [Your own](../guides/policy.md) is a few lines.\n\n"
        + table(("policy", "rule", "guarantee"), rows)
        + "\nHow they are composed of gate, trigger, staleness rule, weight and cancel rule is in "
        "[Policies decide](../design/policy.md).\n"
    )


def _page(name: str, entry: type[PolicySpec]) -> str:
    rule, details = _rule(entry)
    facts = (
        ("Guarantee", escaped(entry.guarantee)),
        ("Source", entry.source),
        ("Servers keep", entry.cost.stores),
        ("Work per push", entry.cost.work),
        ("What is lost", entry.cost.waste),
        ("Optimizer", ", ".join(code(f"{key} = {toml(value)}") for key, value in entry.optimizer.items())),
    )
    knobs = knobs_of(entry)
    rows = [
        (code(knob.name), code(toml(knob.default)), escaped(knob.range), escaped(knob.meaning))
        for knob in knobs
    ]
    settings = "".join(f"{knob.name} = {toml(knob.default)}\n" for knob in knobs)
    parts = [
        f"# {code(name)}",
        rule,
        *details,
        "\n".join(f"- **{title}**: {text}" for title, text in facts if text),
        "## Knobs",
        table(("knob", "default", "range", "meaning"), rows) or "It has no knobs.",
        "## Use",
        f'```toml\n[policy]\nname = "{name}"\n{settings}```',
        f"```sh\nps-lab run examples/digits-sync.toml --set 'policy={{name = \"{name}\"}}'\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _rule(entry: type[PolicySpec]) -> tuple[str, list[str]]:
    """The rule in one sentence, and the paragraphs behind it."""
    first, _, rest = (inspect.getdoc(entry) or "").partition("\n")
    return escaped(first), paragraphs(rest)
