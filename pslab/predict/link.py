"""What a link and a codec allow: bytes of a contribution, and the least time of a batch."""

import math
from collections.abc import Sequence
from typing import Final

from pslab.experiment import Experiment
from pslab.predict.simulation import BATCH, seconds_of
from pslab.theory.measured import LawClaim
from psserver.codec_rules import check_codec
from psserver.optimizers import build as build_optimizer
from psserver.policies import Policy, facts
from psserver.policies import build as build_policy
from psserver.shard.fragments import check_fragments
from pswire.config.experiment import FROM_JOB
from pswire.model.groups import Groups
from pswire.model.plan import Plan, ShardLayout
from pswire.transport.wire import wire_named

UP: Final = "MB up a contribution"
DOWN: Final = "MB down a contribution"


def link_laws(experiment: Experiment, plan: Plan) -> list[LawClaim]:
    """Return the bytes of a contribution, to all servers and back, and the least seconds of a worker's batch.

    The times are floors of the link and the computation alone: encoding, decoding and updates come on top. Where groups
    of rows take turns, they are of the one that takes longest. Raises PolicyError, OptimizerError and WireDtypeError
    where the experiment cannot use its codec.
    """
    cluster, chosen, config = experiment.cluster, experiment.policy, experiment.optimizer
    policy = build_policy(chosen.name, chosen.knobs, cluster.workers, cluster.parts)
    promised = facts(chosen.name, chosen.knobs, cluster.workers)
    barrier = promised is not None and promised.max_staleness == 0
    wire, optimizer = wire_named(cluster.payload_dtype), None
    if config.name != FROM_JOB:
        optimizer = build_optimizer(config.config)
    check_codec(wire.up, policy, optimizer)
    check_fragments(policy.tensors.fragments, optimizer, plan)
    parts = _slowest(plan, policy.tensors.fragments)
    ups = [wire.up.size(part) for part in parts]
    # A worker under a barrier is one version behind; `async` sends whole versions where more happened meanwhile.
    behind = 1 if barrier else cluster.workers
    downs = [
        min(behind * wire.deltas.size(part), part.nbytes) if wire.deltas else wire.down.size(part)
        for part in parts
    ]
    laws = [
        LawClaim(what, math.nan, "=", sum(sizes) / 1e6, "", wire.name)
        for what, sizes in ((UP, ups), (DOWN, downs))
    ]
    if rate := experiment.links.bandwidth:
        laws.append(_floor(experiment, policy, barrier, max(ups) / rate, max(downs) / rate))
    return laws


def _slowest(plan: Plan, fragments: int) -> Sequence[ShardLayout]:
    """Return what each server has of the group that takes longest, of those that take turns."""
    groups, servers = Groups(plan, fragments), range(len(plan.shards))
    turns = [[groups.of(turn, server).layout for server in servers] for turn in range(fragments)]
    return max(turns, key=lambda parts: max(part.elements for part in parts))


def _floor(experiment: Experiment, policy: Policy, barrier: bool, up: float, down: float) -> LawClaim:
    """Return the least seconds of a batch. `up`, `down`: seconds of a contribution on the busiest server's link.

    Under a barrier nothing is sent back before all has arrived, so one direction is used at a time, and steps that need
    no version hide some of that. Otherwise both directions, and the workers' computations, overlap; one worker alone
    takes the sum unless it fetches ahead.
    """
    cluster, batches = experiment.cluster, policy.local_rule.batches
    workers, prefetch = cluster.workers, cluster.prefetch
    batch = min(seconds_of(experiment, number) for number in range(workers))
    compute = batch * batches
    if barrier:
        link = max(0.0, workers * (up + down) - batch * policy.local_rule.knobs.get("overlap", 0))
        least, formula = compute + link, "compute + n (up + down) / bandwidth"
    else:
        link = max(workers * max(up, down), 0.0 if prefetch else up + down)
        least = max(compute if prefetch else compute + up + down, link)
        formula = "max(compute + (up + down) / bandwidth, n max(up, down) / bandwidth)"
    bound = "link" if link > compute else "computation"
    return LawClaim(BATCH, math.nan, ">=", least / batches, formula, f"the {bound} bounds it")
