"""The job's policy chosen by the log's first entry, and its guarantee checked on the rest."""

from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.check.policies.known import KNOWN
from pslab.check.policies.terms import Terms
from pslab.runs.fold import Fold
from pslab.runs.log import Line
from pswire.decisions import entries as e


class PolicyGuarantee(LogCheck):
    """The policy's own guarantee, chosen by the job entry; nothing for a policy that is not known here."""

    name = "policy guarantee"

    def __init__(self) -> None:
        self._checks: list[LogCheck] = []
        self._known = False

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
        if isinstance(entry.fact, e.Job) and entry.fact.policy.get("name") in KNOWN:
            yield from self._choose(entry.fact)
        for check in self._checks:
            yield from check.see(entry, state)

    def _choose(self, job: e.Job) -> Iterator[str]:
        self._known = True
        try:
            terms = KNOWN[str(job.policy.get("name"))](job.policy, job.workers)
        except (ValueError, TypeError, ArithmeticError) as error:
            yield f"the policy {job.policy} has a knob that makes no sense: {error}"
            return
        self._checks = terms.checks()
        yield from misdeclared(job, terms)

    def remarks(self, state: Fold) -> Iterator[str]:
        if not self._known and state.job is not None:
            name = state.job.policy.get("name")
            yield f"no guarantee is known for policy {name}; the general promises were checked"


def misdeclared(job: e.Job, terms: Terms) -> Iterator[str]:
    """Sentences about tensor parts in the job entry that are not those of its policy; none in a log without parts."""
    if job.tensors is None:
        return
    name = str(job.policy.get("name"))
    declared = (job.tensors.get("compensator"), job.tensors.get("aggregator"), job.tensors.get("knobs"))
    expected = (terms.compensator, terms.aggregator, dict(terms.numbers))
    if declared != expected:
        yield f"the shards were told to use {_described(declared)}; {name} uses {_described(expected)}"
    if terms.undivided and job.servers > 1:
        yield f"{name} compares whole gradients, but the model was divided over {job.servers} servers"


def _described(parts: tuple[object, object, object]) -> str:
    compensator, aggregator, knobs = parts
    return f"compensator {compensator or 'none'}, aggregator {aggregator}, numbers {knobs}"
