"""The shelf: named compositions, each with its guarantee, its source, its knobs and its cost."""

from psserver.policies.shelf.arrivals import Async, FedBuff, KAsync, KBatchAsync, Softsync
from psserver.policies.shelf.barriers import KBatchSync, KSync, Rennala, Sync
from psserver.policies.shelf.clocks import Dssp, Ssp
from psserver.policies.shelf.compensated import DcAsgdA, GapAware
from psserver.policies.shelf.entry import Cost, Entry, Knob, knobs_of
from psserver.policies.shelf.local import DanaSlim, DiLoCo, Easgd, LocalAsync, LocalSgd
from psserver.policies.shelf.robust import Krum, Median, TrimmedMean
from psserver.policies.shelf.staleness import Bounded, DcAsgd, DelayAdaptive, Ringmaster

SHELF: dict[str, type[Entry]] = {
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

__all__ = ["SHELF", "Cost", "Entry", "Knob", "knobs_of"]
