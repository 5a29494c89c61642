"""Bytes of a step, the least time it can take, and what bounds it, for a link and a codec before a run."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psserver.codec_rules import check_codec
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, PolicyError, facts
from psserver.policies import build as build_policy
from psserver.shard.fragments import check_fragments
from pswire.config.experiment import FROM_JOB, Experiment
from pswire.model.groups import Groups
from pswire.model.plan import Plan, ShardLayout
from pswire.transport.wire import wire_named

# What of a link's bits is payload, with Ethernet frames of 1,500 bytes and TCP.
PAYLOAD: Final = 1448 / 1538
TRIED: Final = (
    *("float32", "bfloat16", "int8/bfloat16", "int8/int8", "int4/int4"),
    *("top-k/bfloat16", "top-k/int8", "top-k/top-k"),
)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kMG])?bit(?:/s)?")
_UNITS: Final = {None: 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def bytes_per_second(text: str) -> float:
    """Parse the rate of a link, such as "1Gbit/s"; return what it carries of payloads. Raises ValueError."""
    found = _RATE.fullmatch(text.strip())
    bits = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if bits <= 0:
        raise ValueError(f"expected a rate such as 1Gbit/s or 100Mbit/s, got {text!r}")
    return bits / 8 * PAYLOAD


@dataclass(frozen=True, slots=True)
class Row:
    """The estimate for one `wire_dtype`. A contribution takes `up` bytes to the servers and `down` bytes back, over
    all.

    `seconds`: the least time of a batch of one worker, from the link and the computation alone; None without a link.
    `bound`: "link" or "computation". `refusal`: why the experiment cannot use it; then nothing else is known.
    Where groups of rows take turns, it is about the one that takes longest.
    """

    name: str
    up: int = 0
    down: int = 0
    seconds: float | None = None
    bound: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """`whole`: bytes of the model as float32. `batches`: of each contribution. `barrier`: whether all workers send, and
    then all receive. `compute`: seconds of a batch."""

    whole: int
    variables: int
    batches: int
    barrier: bool
    compute: float
    rows: Sequence[Row]

    @property
    def chosen(self) -> Row:
        """The experiment's own codecs."""
        return self.rows[0]


def explain(experiment: Experiment, plan: Plan, rate: float | None, compute: float) -> Explained:
    """Explain the experiment's own `wire_dtype`, and those that others would choose.

    `rate`: bytes/s of a server's link in each direction, None for no limit; `compute`: seconds of a batch. Raises
    PolicyError, OptimizerError, WireDtypeError.
    """
    cluster, chosen = experiment.cluster, experiment.policy
    policy = build_policy(chosen.name, chosen.knobs, cluster.workers, cluster.parts)
    promised = facts(chosen.name, chosen.knobs, cluster.workers)
    barrier = promised is not None and promised.max_staleness == 0
    batches = policy.local_rule.batches
    names = dict.fromkeys((wire_named(cluster.wire_dtype).name, *TRIED))
    rows = tuple(_rows(names, experiment, policy, plan, rate, compute * batches, barrier))
    whole = sum(shard.nbytes for shard in plan.shards)
    return Explained(whole, len(plan.variables), batches, barrier, compute, rows)


def _rows(
    names: Iterable[str],
    experiment: Experiment,
    policy: Policy,
    plan: Plan,
    rate: float | None,
    compute: float,
    barrier: bool,
) -> Iterator[Row]:
    cluster, config, fragments = experiment.cluster, experiment.optimizer, policy.tensors.fragments
    overlap = policy.local_rule.knobs.get("overlap", 0)
    optimizer = None if config.name == FROM_JOB else build_optimizer(config.config)
    for name in names:
        wire = wire_named(name)
        try:
            check_codec(wire.up, policy, optimizer)
            check_fragments(fragments, optimizer, plan)
        except (PolicyError, OptimizerError) as error:
            yield Row(name, refusal=str(error))
            continue
        parts = _slowest(plan, fragments)
        ups = [wire.up.size(part) for part in parts]
        # A worker under a barrier is one version behind; `async` sends whole versions where more happened meanwhile.
        behind = 1 if barrier else cluster.workers
        downs = [
            min(behind * wire.deltas.size(part), part.nbytes) if wire.deltas else wire.down.size(part)
            for part in parts
        ]
        row = Row(name, sum(ups), sum(downs))
        if rate is None:
            yield row
            continue
        # Servers work side by side: the largest part is the slowest.
        up, down = max(ups) / rate, max(downs) / rate
        hidden = compute * overlap / policy.local_rule.batches
        seconds, link = _least(up, down, compute, cluster.workers, barrier, cluster.prefetch, hidden)
        bound = "link" if link > compute else "computation"
        yield Row(name, row.up, row.down, seconds / policy.local_rule.batches, bound)


def _slowest(plan: Plan, fragments: int) -> Sequence[ShardLayout]:
    """Return what each server has of the group that takes longest, of those that take turns."""
    groups, servers = Groups(plan, fragments), range(len(plan.shards))
    turns = [[groups.of(turn, server).layout for server in servers] for turn in range(fragments)]
    return max(turns, key=lambda parts: max(part.elements for part in parts))


def _least(
    up: float, down: float, compute: float, workers: int, barrier: bool, prefetch: bool, hidden: float
) -> tuple[float, float]:
    """Return the least seconds of one contribution of each worker, and the link's part of it.

    Under a barrier nothing is sent back before all has arrived, so one direction is used at a time; `hidden` seconds of
    that pass while workers go on. Otherwise both directions, and the workers' computations, overlap; one worker alone
    takes the sum unless it fetches ahead.
    """
    if barrier:
        link = max(0.0, workers * (up + down) - hidden)
        return compute + link, link
    link = max(workers * max(up, down), 0.0 if prefetch else up + down)
    return (max(compute, link) if prefetch else max(compute + up + down, link)), link
