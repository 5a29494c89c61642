"""The guarantees of every built-in policy, one entry each, and the check that chooses the entry by the log's job.

Formulas and defaults are repeated here on purpose: a check that shares the code that it checks finds nothing. The
sources are those that `ps-lab list policies NAME` prints. For a policy that is missing here only the properties of all
policies are checked, and the report says so.

An entry takes the knobs that the log names and the number of workers. It may raise ValueError, TypeError or
ArithmeticError for knobs that no policy accepts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pslab.check.deadlines import Deadlines, Limits, Waste
from pslab.check.log_check import LogCheck
from pslab.check.terms import AT_ONCE, Lead, PolicyStart, Terms, constant
from pslab.runs.fold import LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e

Knobs = Mapping[str, Any]
BARRIER = Terms(size=None, distinct=True, bound=0, ahead=False)


def _k(knobs: Knobs) -> int:
    return int(knobs.get("aggregate", 2))


def _inverse(tau: int) -> float:
    return 1.0 if tau == 0 else 1 / tau


def _sync(knobs: Knobs, workers: int) -> Terms:
    backup = int(knobs.get("backup", 0))
    samples = int(knobs.get("most_samples", 65536)) if knobs.get("weight") == "samples" else 0
    cancels = 1 if backup else None
    return Terms(
        size=None, distinct=True, bound=0, ahead=False, backup=backup, cancels=cancels, samples=samples
    )


def _k_sync(knobs: Knobs, workers: int) -> Terms:
    cancels = None if knobs.get("late", "cancel") == "drop" else 1
    return Terms(_k(knobs), distinct=True, bound=0, ahead=False, cancels=cancels)


def _bounded(knobs: Knobs, workers: int) -> Terms:
    bound, how = int(knobs.get("max_staleness", 4)), str(knobs.get("on_stale", "drop"))
    return Terms(
        int(knobs.get("aggregate", 1)),
        # "block" holds an update back until old work is in; meanwhile it may grow.
        grows=how == "block",
        bound=bound if how in ("drop", "block") else None,
        drops=how == "drop",
        ahead=how not in ("drop", "block") or bound > 0,
        weight=lambda tau: (bound + 1) / (tau + 1) if how == "downweight" and tau > bound else 1.0,
        compensation=float(knobs.get("compensation", 0.04)) if how == "compensate" else 0.0,
        compensated_beyond=bound,
        compensator="taylor" if how == "compensate" else None,
    )


def _softsync(knobs: Knobs, workers: int) -> Terms:
    return Terms(workers // int(knobs.get("n", 1)), weight=_inverse)


def _fading(knobs: Knobs) -> Callable[[int], float]:
    """Return the weight by staleness: the families of fedbuff, by name."""
    a, b = float(knobs.get("a", 0.5)), int(knobs.get("b", 4))
    families: dict[str, Callable[[int], float]] = {
        "const": constant,
        "inverse": _inverse,
        "polynomial": lambda tau: math.exp(-a * math.log1p(tau)),
        "hinge": lambda tau: 1.0 if tau <= b else 1 / (1 + a * (tau - b)),
        "exponential": lambda tau: math.exp(-a * tau),
        "threshold": lambda tau: a if tau > b else 1.0,
    }
    return families.get(str(knobs.get("weight", "polynomial")), constant)


def _fedbuff(knobs: Knobs, workers: int) -> Terms:
    return Terms(_k(knobs), weight=_fading(knobs), norm=str(knobs.get("norm", "mean")))


def _deadline_sync(knobs: Knobs, workers: int) -> Terms:
    limits = Limits(
        float(knobs.get("share", 0.5)),
        float(knobs.get("budget", 0.5)),
        workers,
        int(knobs.get("patience", 4)),
    )
    return Terms(size=None, distinct=True, bound=0, drops=False, ahead=False, cancels=1, deadline=limits)


def _fedbuff_timeout(knobs: Knobs, workers: int) -> Terms:
    return replace(_fedbuff(knobs, workers), deadline=Limits())


def _delay_adaptive(knobs: Knobs, workers: int) -> Terms:
    m = int(knobs.get("concurrency", 0)) or workers
    return Terms(lr_scale=lambda tau: 1.0 if tau <= m else m / tau)


def _ringmaster(knobs: Knobs, workers: int) -> Terms:
    threshold = int(knobs.get("threshold", 4))
    cancels = threshold if knobs.get("stops", False) else None
    return Terms(bound=threshold - 1, ahead=threshold > 1, cancels=cancels)


def _dssp(knobs: Knobs, workers: int) -> Terms:
    return Terms(lead=int(knobs.get("upper", 15)), ahead=False)


def _dc_asgd(knobs: Knobs, workers: int) -> Terms:
    return Terms(compensation=float(knobs.get("compensation", 0.04)), compensator="taylor")


def _dc_asgd_a(knobs: Knobs, workers: int) -> Terms:
    # Fresh gradients are compensated as well: the compensator learns from them.
    return Terms(
        compensation=float(knobs.get("compensation", 2.0)),
        compensated_beyond=-1,
        compensator="adaptive-taylor",
        numbers={"decay": float(knobs.get("decay", 0.95)), "epsilon": float(knobs.get("epsilon", 1e-7))},
    )


def _gap_aware(knobs: Knobs, workers: int) -> Terms:
    return Terms(
        compensation=1.0,
        compensated_beyond=-1,
        compensator="gap-aware",
        numbers={"decay": float(knobs.get("decay", 0.999)), "epsilon": float(knobs.get("epsilon", 1e-8))},
    )


def _robust(aggregator: str, fewest: int, numbers: Mapping[str, float]) -> Terms:
    return Terms(
        size=None,
        distinct=True,
        bound=0,
        ahead=False,
        fewest=fewest,
        norm="listed",
        aggregator=aggregator,
        numbers=numbers,
        undivided=aggregator == "krum",
    )


def _median(knobs: Knobs, workers: int) -> Terms:
    fewest = min(int(knobs.get("fewest", 3)), workers)
    return _robust("median", fewest, {"fewest": fewest})


def _trimmed_mean(knobs: Knobs, workers: int) -> Terms:
    trim = int(knobs.get("trim", 1))
    return _robust("trimmed-mean", 2 * trim + 1, {"trim": trim})


def _krum(knobs: Knobs, workers: int) -> Terms:
    byzantine = int(knobs.get("byzantine", 0))
    return _robust("krum", 2 * byzantine + 3, {"byzantine": byzantine, "select": int(knobs.get("select", 1))})


KNOWN: dict[str, Callable[[Knobs, int], Terms]] = {
    "sync": _sync,
    "k-sync": _k_sync,
    "k-batch-sync": lambda knobs, workers: Terms(_k(knobs), bound=0, ahead=False, cancels=1),
    "rennala": lambda knobs, workers: Terms(_k(knobs), bound=0, ahead=False),
    "async": lambda knobs, workers: Terms(),
    "k-async": lambda knobs, workers: Terms(_k(knobs), distinct=True, ahead=False),
    "k-batch-async": lambda knobs, workers: Terms(_k(knobs)),
    "softsync": _softsync,
    "fedbuff": _fedbuff,
    "fedbuff-timeout": _fedbuff_timeout,
    "deadline-sync": _deadline_sync,
    "dbw": lambda knobs, workers: Terms(
        size=None, every=False, distinct=True, bound=0, drops=False, ahead=False, cancels=1
    ),
    "bounded": _bounded,
    "delay-adaptive": _delay_adaptive,
    "ringmaster": _ringmaster,
    "dc-asgd": _dc_asgd,
    # A worker reads its own writes (Ho et al. 2013, section 3), so it is granted nothing ahead.
    "ssp": lambda knobs, workers: Terms(lead=int(knobs.get("slack", 3)), ahead=False),
    "dssp": _dssp,
    "dc-asgd-a": _dc_asgd_a,
    "gap-aware": _gap_aware,
    "median": _median,
    "trimmed-mean": _trimmed_mean,
    "krum": _krum,
    # The log shows gate and trigger, but not what the workers do between pull and push.
    "local-sgd": lambda knobs, workers: BARRIER,
    "diloco": lambda knobs, workers: BARRIER,
    "local-async": lambda knobs, workers: Terms(),
    "easgd": lambda knobs, workers: Terms(),
    "dana-slim": lambda knobs, workers: Terms(),
}


class PolicyGuarantee(LogCheck):
    """The guarantee of the policy that decides holds. Nothing is checked for a policy that is not known here.

    The guarantee of one that takes over holds in full once it has settled. What it decides alone, such as weights,
    holds at once.
    """

    name = "policy guarantee"

    def __init__(self) -> None:
        self._checks: list[LogCheck] = []
        self._unknown: set[str] = set()
        # A policy has taken over and has not settled.
        self._unsettled = False
        # The factor of the newest rate that a worker has set, which a change of the policy leaves as it is.
        self._set_scale = 1.0
        # The factor that changes of the policy have set.
        self._changed = 1.0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        for check in self._checks:
            found = list(check.see(entry, state))
            if not self._unsettled or isinstance(check, AT_ONCE):
                yield from found
        match entry.fact:
            case e.Job() as job:
                yield from self._choose(job, job.policy)
            case e.Rate(_, _, scale):
                self._set_scale = scale
            case e.Policy() as change if state.job is not None:
                held = frozenset(ticket.number for ticket in state.reading())
                self._unsettled = True
                self._changed = 1.0 if change.rate is None else change.rate
                yield from self._choose(state.job, change.policy, held, [m.worker for m in state.playing()])
            case e.Settled():
                self._unsettled = False

    def _choose(
        self, job: e.Job, policy: Knobs, former: frozenset[int] = frozenset(), workers: Sequence[str] = ()
    ) -> Iterator[str]:
        """Check the guarantee of `policy` from here on. `former`: tickets from before; `workers`: those that play."""
        name, before, self._checks = str(policy.get("name")), self._checks, []
        if name not in KNOWN:
            self._unknown.add(name)
            return
        try:
            terms = KNOWN[name](policy, job.workers)
        except (ValueError, TypeError, ArithmeticError) as error:
            yield f"the policy {policy} has an invalid knob: {error}"
            return
        clocks = next((check.clocks for check in before if isinstance(check, Lead)), None)
        waste = next((check.waste for check in before if isinstance(check, Deadlines)), Waste())
        start = PolicyStart(former, tuple(workers), self._set_scale, self._changed, clocks, waste)
        self._checks = terms.checks(start)
        yield from misdeclared(job, name, terms)

    def remarks(self, state: LogState) -> Iterator[str]:
        for name in sorted(self._unknown):
            yield f"no guarantee is known for policy {name}; only the properties of all policies were checked"


def misdeclared(job: e.Job, name: str, terms: Terms) -> Iterator[str]:
    """Yield a sentence for each part of the job entry that its policy does not use."""
    for knob in ("overlap", "mixing"):
        has, wants = (job.local or {}).get(knob, 0), job.policy.get(knob, 0)
        if has != wants:
            yield f"the workers' {knob} is {has}; {name} says {wants}"
    tensors = job.tensors or {}
    declared = (tensors.get("compensator"), tensors.get("aggregator", "mean"), tensors.get("knobs", {}))
    expected = (terms.compensator, terms.aggregator, dict(terms.numbers))
    if declared != expected:
        yield f"the shards use {_described(declared)}; {name} uses {_described(expected)}"
    knobs = {**job.policy, "fragments": job.policy.get("fragments", 1)}
    for whose, says in (("shards", tensors), ("workers", job.local or {})):
        if says.get("fragments", 1) != knobs["fragments"]:
            yield f"the {whose} cut the model into {says.get('fragments', 1)} groups; {name} into {knobs['fragments']}"
    if terms.undivided and job.servers > 1:
        yield f"{name} compares whole gradients, but the model was divided over {job.servers} servers"


def _described(parts: tuple[object, object, object]) -> str:
    compensator, aggregator, knobs = parts
    return f"compensator {compensator or 'none'}, aggregator {aggregator}, numbers {knobs}"
