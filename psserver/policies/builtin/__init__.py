"""The shelf: named compositions, each with its guarantee, its source, its knobs and its cost."""

from psserver.policies.builtin.arrivals import Async, FedBuff, KAsync, KBatchAsync, Softsync
from psserver.policies.builtin.barriers import KBatchSync, KSync, Rennala, Sync
from psserver.policies.builtin.clocks import Dssp, Ssp
from psserver.policies.builtin.compensated import DcAsgdA, GapAware
from psserver.policies.builtin.local import DanaSlim, DiLoCo, Easgd, LocalAsync, LocalSgd
from psserver.policies.builtin.robust import Krum, Median, TrimmedMean
from psserver.policies.builtin.spec import Cost, Knob, PolicySpec, knobs_of
from psserver.policies.builtin.staleness import Bounded, DcAsgd, DelayAdaptive, Ringmaster

SHELF: dict[str, type[PolicySpec]] = {
    "sync": Sync,
    "async": Async,
    "bounded": Bounded,
    "ssp": Ssp,
    "k-sync": KSync,
    "k-batch-sync": KBatchSync,
    "rennala": Rennala,
    "k-async": KAsync,
    "k-batch-async": KBatchAsync,
    "softsync": Softsync,
    "fedbuff": FedBuff,
    "delay-adaptive": DelayAdaptive,
    "ringmaster": Ringmaster,
    "dssp": Dssp,
    "dc-asgd": DcAsgd,
    "dc-asgd-a": DcAsgdA,
    "gap-aware": GapAware,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "dana-slim": DanaSlim,
    "local-sgd": LocalSgd,
    "diloco": DiLoCo,
    "local-async": LocalAsync,
    "easgd": Easgd,
}
"""The built-in policies by name, in the order in which they are listed."""

__all__ = ["SHELF", "Cost", "PolicySpec", "Knob", "knobs_of"]
