"""Policies: an overview, and one page for each, from the data beside their code.

A page asks for the table of their compositions with the line ``<!-- compositions -->``, and for all of them in brief,
with a picture of each, with ``<!-- which policy -->``.
"""

import inspect
from collections.abc import Mapping

import psserver.policies
from docs.generate.docstrings import escaped, paragraphs
from docs.generate.table import code, table
from psserver.policies.builtin import BUILTIN, FAMILIES, PolicySpec
from psserver.policies.declarations import PLAIN, TensorParts
from psserver.policies.parts.weights import FAMILIES as WEIGHTS
from pswire.knobs import knobs_of, toml
from psworker.local.registry import KINDS

# A job's workers, where a policy's parts depend on their number.
WORKERS = 8
CHOICES = ("gate", "trigger", "staleness rule", "weight", "learning rate", "cancel rule")
ASKED, CHOICE = "<!-- compositions -->", "<!-- which policy -->"
# Staleness at which weights are shown, in versions.
TAUS = (0, 1, 2, 4, 8, 16)


def pages() -> dict[str, str]:
    found = {"policies/README.md": _overview()}
    return found | {f"policies/{name}.md": _page(name, entry) for name, entry in BUILTIN.items()}


def filled(markdown: str) -> str:
    """The page with what is asked for behind the line that asks for it."""
    for line, made in ((ASKED, compositions), (CHOICE, _all)):
        if line in markdown:
            markdown = markdown.replace(line, f"{line}\n\n{made()}")
    return markdown


def _all() -> str:
    """Every policy with its picture, and when to use it."""
    return "\n\n".join(
        "\n\n".join(
            [
                f"## {title.partition(':')[0].rstrip('.')}",
                *(_in_brief(name, entry) for name, entry in family.items()),
            ]
        )
        for title, family in FAMILIES.items()
    )


def _in_brief(name: str, entry: type[PolicySpec]) -> str:
    when = f"{_rule(entry)[0]} **Use it when** {escaped(entry.use_when)}"
    return f"### [{code(name)}](../policies/{name}.md)\n\n{when}\n\n{_picture(name, '../policies')}"


def _picture(name: str, folder: str) -> str:
    shown = f"Five workers under {name}, one of them slow: who computes, who waits, what is applied"
    return f"![{shown}]({folder}/{name}.svg)"


def compositions() -> str:
    """What each policy is composed of, at its defaults."""
    rows = [
        (f"[`{name}`](../policies/{name}.md)", *(_chosen(entry).get(choice, "") for choice in CHOICES))
        for name, entry in BUILTIN.items()
    ]
    return table(("policy", *CHOICES), rows)


def _overview() -> str:
    return (
        "# Policies\n\n"
        "A policy decides which worker may start, which gradients make an update, and what becomes of a late one.\n"
        "These are built in. `--policy NAME` chooses one for `ps-server`, `[policy] name` in an experiment file;\n"
        "`ps-lab policies NAME` explains it in the terminal. [Which policy?](../guides/which-policy.md) helps\n"
        "to choose, with a picture of each. [Your own](../guides/policy.md) is a few lines.\n\n"
        + "\n".join(_family(title, family) for title, family in FAMILIES.items())
        + "\nWhat each is composed of (gate, trigger, staleness rule, and more) is in "
        "[Policies decide](../design/policy.md).\n\n" + _weights() + "\n" + _local_rules()
    )


def _family(title: str, family: Mapping[str, type[PolicySpec]]) -> str:
    rows = [
        (f"[`{name}`]({name}.md)", _rule(entry)[0], escaped(entry.use_when), escaped(entry.guarantee))
        for name, entry in family.items()
    ]
    return f"{title}\n\n" + table(("policy", "rule", "use it when", "guarantee"), rows)


def _weights() -> str:
    a, b = 0.5, 4
    families = {name: family(a, b) for name, family in WEIGHTS.items()}
    rows = [
        (code(name), escaped(inspect.getdoc(weight) or ""), *(f"{weight(tau):.3g}" for tau in TAUS))
        for name, weight in families.items()
    ]
    return (
        "## Weights\n\nWhat a contribution counts by its staleness tau, here for a = 0.5 and b = 4. "
        "[`fedbuff`](fedbuff.md) takes them by name, a policy of your own as classes of "
        "[`psserver.policies`](../api/psserver.policies.md).\n\n"
        + table(("weight", "formula and source", *TAUS), rows)
    )


def _local_rules() -> str:
    rows = [
        (code(name), escaped(kind.meaning), ", ".join(code(knob.name) for knob in kind.knobs))
        for name, kind in KINDS.items()
    ]
    return (
        "## Local rules\n\nWhat workers do between pull and push. A policy names the rule, with every number, "
        "as a `LocalRule`.\n\n" + table(("rule", "does", "numbers"), rows)
    )


def _page(name: str, entry: type[PolicySpec]) -> str:
    rule, details = _rule(entry)
    facts = (
        ("Use it when", escaped(entry.use_when)),
        ("Guarantee", escaped(entry.guarantee)),
        ("Made of", _parts(entry)),
        ("Source", entry.source),
        ("Servers keep", entry.cost.stores),
        ("Work per push", entry.cost.work),
        ("What is lost", entry.cost.waste),
        ("Optimizer", ", ".join(code(f"{key} = {toml(value)}") for key, value in entry.optimizer.items())),
    )
    knobs = knobs_of(entry)
    rows = [
        (code(knob.name), code(toml(knob.default)), escaped(knob.domain.describe()), escaped(knob.meaning))
        for knob in knobs
    ]
    settings = "".join(f"{knob.name} = {toml(knob.default)}\n" for knob in knobs)
    parts = [
        f"# {code(name)}",
        rule,
        *details,
        _picture(name, "."),
        "\n".join(f"- **{title}**: {text}" for title, text in facts if text),
        "## Knobs",
        table(("knob", "default", "range", "meaning"), rows) or "It has no knobs.",
        "## Use",
        f'```toml\n[policy]\nname = "{name}"\n{settings}```',
        f"```sh\nps-lab run examples/digits-sync.toml --set 'policy={{name = \"{name}\"}}'\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _parts(entry: type[PolicySpec]) -> str:
    """The choices that the policy composes at its defaults, in words."""
    parts = [f"{what} {part}" for what, part in _chosen(entry).items()]
    composition = entry().compose(WORKERS)
    tensors = composition.tensors
    if tensors.compensator:
        parts.append(f"compensator {code(tensors.compensator)}")
    if tensors.aggregator != TensorParts().aggregator:
        parts.append(f"aggregator {code(tensors.aggregator)}")
    if composition.local != PLAIN:
        parts.append(f"[local rule](README.md#local-rules) {code(composition.local.name)}")
    return ", ".join(parts)


def _chosen(entry: type[PolicySpec]) -> dict[str, str]:
    """The parts that the policy composes at its defaults for a few workers, with links, by choice."""
    composition = entry().compose(WORKERS)
    chosen = (
        *(composition.gate, composition.trigger, composition.staleness),
        *(composition.weight, composition.lr_scale, composition.cancel),
    )
    return {
        choice: _linked(type(part).__name__)
        for choice, part in zip(CHOICES, chosen, strict=True)
        if part is not None
    }


def _linked(name: str) -> str:
    """A part of a policy, with a link to the reference where it is public."""
    there = f"../api/psserver.policies.md#psserver.policies.{name}"
    return f"[{code(name)}]({there})" if name in psserver.policies.__all__ else code(name)


def _rule(entry: type[PolicySpec]) -> tuple[str, list[str]]:
    """The rule in one sentence, and the paragraphs behind it."""
    first, _, rest = (inspect.getdoc(entry) or "").partition("\n")
    return escaped(first), paragraphs(rest)
