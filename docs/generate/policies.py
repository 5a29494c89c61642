"""Policies: an overview that helps to choose, and one page for each, from the data beside their code."""

import inspect
import re
from collections.abc import Iterator, Mapping

import psserver.policies
from docs.generate.docstrings import escaped, paragraphs
from docs.generate.table import code, table
from psserver.policies.builtin import BUILTIN, FAMILIES, PolicySpec
from psserver.policies.declarations import PLAIN, TensorParts
from psserver.policies.parts.weights import FAMILIES as WEIGHTS
from pswire.knobs import knobs_of, toml
from psworker.local.rules import KINDS

# A job's workers, where a policy's parts depend on their number.
WORKERS = 8
CHOICES = ("gate", "trigger", "staleness rule", "weight", "learning rate", "cancel rule", "deadline")
# Staleness at which weights are shown, in versions.
TAUS = (0, 1, 2, 4, 8, 16)


CHOOSING = """# Policies

A policy decides which worker may start, which gradients make an update, and what becomes of a late one.
`--policy NAME` chooses one for `ps-server`, `[policy] name` in an experiment file; `ps-lab list policies NAME` explains
it in the terminal. A policy [of your own](../guides/policy.md) is a few lines.

Begin with [`sync`](sync.md). When it does not suit you, look for what is wrong:
"""

# What is wrong -> what to try.
SYMPTOMS = (
    ("all wait for one worker that is late now and then", "`ssp`, or `sync` with `backup = 1`"),
    (
        "the same, and gradients have to be fresh",
        "`deadline-sync`; `dbw`, which finds the number to wait for",
    ),
    ("all wait for the same slow worker", "`async`; with many workers `k-batch-async` or `bounded`"),
    (
        "`async` is fast, but the loss jumps or grows",
        "a smaller learning rate; `softsync`, `delay-adaptive` or `bounded`",
    ),
    ("`async` with momentum diverges", "`dana-slim`"),
    (
        "you do not know how many gradients an update should have, or it changes",
        "`dbw`, which looks for the number",
    ),
    ("workers send and receive most of the time", "`local-sgd`; `diloco` between sites"),
    ("a worker may send wrong gradients", "`median`, `trimmed-mean`, `krum`"),
)

PICTURES = """The dashboard and [`ps-lab status`](../commands/ps-lab-status.md) show who waits for whom. To try a policy
without a cluster, [sweep](../commands/ps-lab-sweep.md) a simulated experiment over policies, or ask
[`ps-lab predict`](../commands/ps-lab-predict.md) how it would do at the pace of a run.

**How to read the pictures.** Each shows the same five workers, simulated by the policy's own code at its usual knobs.
The last worker takes three times as long for a step as the others. A blue bar computes a gradient; hatched, the worker
waits; red, its work was cancelled. A green dot is a gradient that is applied, larger the more it counts; a red cross is
one that is dropped. A dashed line is a new version. Policies that differ only in how they correct a gradient have the
same picture."""

SILENT = """## What the papers leave open

- **Staleness is judged at the commit**, which equals that at the apply: only an apply moves the version.
- **A dropped contribution** makes no other one older. In `ssp` it counts as a clock, because the worker did
  its work.
- **Down-weighting** in `bounded` is (s + 1) / (staleness + 1) beyond the bound s: the M / max(M, tau) of
  Mishchenko et al. (2022) with M = s + 1. It scales the gradient; policies that scale the learning rate use
  `lr_scale`.
- **`block`** delays the update while an open ticket would become older than the bound. Contributions that
  come meanwhile join the update. With a bound of 0 no ticket is granted while an update waits.
- **`aggregate` above the number of workers** is for `k-batch-sync`, `rennala`, `k-batch-async` and
  `fedbuff`, where a worker may contribute several times to one update. `k-sync`, `k-async` and `bounded`
  refuse it.
- **Losses use up `backup` first**: an update of `sync` needs max(configured, most ever active) - `backup`
  contributions, or all that remain. `k-sync` waits for k, however many workers join.
- **A mean divides by the number of contributions**, not by the sum of their weights; `fedbuff` can sum
  instead. `sync` with `weight = "samples"` divides by the number of samples; a worker counts for at most
  `most_samples`.
- **An update of too few** is not made by `trimmed-mean` and `krum`, which need 2 b + 1 and 2 f + 3
  contributions.
- **`dssp` as printed** does not keep its upper bound; ours does.
- **A newcomer** under `ssp` starts with the clock of the slowest worker.
- **A deadline** (`deadline-sync`, `fedbuff-timeout`) ends the wait of an update. An update that a deadline makes
  follows on an entry `timer` of the log.
- **The last update** takes what is left when nobody has more data.
- **Order of summation**: by rank under `sync` without backups, `median`, `trimmed-mean`, `krum`,
  `local-sgd` and `diloco`; in the order of the commits under all others.
"""


def pages() -> dict[str, str]:
    found = {"policies/README.md": _overview()}
    return found | {f"policies/{name}.md": _page(name, entry) for name, entry in BUILTIN.items()}


def _overview() -> str:
    families = [part for title, family in FAMILIES.items() for part in _family(title, family)]
    rows = [(seen, re.sub(r"`([\w-]+)`", r"[`\1`](\1.md)", remedy)) for seen, remedy in SYMPTOMS]
    head = (CHOOSING, table(("what you see", "try"), rows), PICTURES)
    parts = (_compositions(), SILENT, _weights(), _local_rules())
    return "\n\n".join([*head, *families, *parts])


def _family(title: str, family: Mapping[str, type[PolicySpec]]) -> Iterator[str]:
    """Every policy of a family with its picture, when to use it, and what it guarantees."""
    yield f"## {title.partition(':')[0].rstrip('.')}"
    for name, entry in family.items():
        yield f"### [{code(name)}]({name}.md)"
        yield f"{_rule(entry)[0]} **Use it when** {escaped(entry.use_when)} **Guarantee:** {escaped(entry.guarantee)}."
        yield _picture(name)


def _picture(name: str) -> str:
    return f"![Five workers under {name}, one of them slow: who computes, who waits, what is applied]({name}.svg)"


def _knobs(entry: type[PolicySpec]) -> str:
    rows = [
        (code(knob.name), code(toml(knob.default)), escaped(knob.domain.describe()), escaped(knob.meaning))
        for knob in knobs_of(entry)
    ]
    return table(("knob", "default", "range", "meaning"), rows) or "It has no knobs."


def _compositions() -> str:
    """What each policy is composed of, at its defaults."""
    rows = [
        (f"[`{name}`]({name}.md)", *(_chosen(entry).get(choice, "") for choice in CHOICES))
        for name, entry in BUILTIN.items()
    ]
    return "## What each is made of\n\n" + table(("policy", *CHOICES), rows)


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
    settings = "".join(f"{knob.name} = {toml(knob.default)}\n" for knob in knobs)
    parts = [
        f"# {code(name)}",
        rule,
        *details,
        _picture(name),
        "\n".join(f"- **{title}**: {text}" for title, text in facts if text),
        "## Knobs",
        _knobs(entry),
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
        None if composition.deadline is None else composition.deadline.rule,
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
