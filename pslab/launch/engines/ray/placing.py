"""What a run wants of a cluster, and what is missing there, in words. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pslab.launch.engines.launcher import Resources, Wanted

# Of a process that says nothing: Ray would put any number of those on one core.
CPUS = 1

Bundle = dict[str, float]


def bundle(resources: Resources) -> Bundle:
    """As Ray counts them; memory in bytes."""
    said = {"CPU": resources.cpus or CPUS, "memory": resources.memory, "GPU": resources.gpus}
    return {name: float(number) for name, number in said.items() if number}


def total(wanted: Sequence[Wanted]) -> Bundle:
    """Of all together."""
    found: Counter[str] = Counter()
    for each in wanted:
        found.update({name: int(number) for name, number in bundle(each.resources).items()})
    return {name: float(number) for name, number in found.items()}


def shortage(
    wanted: Sequence[Wanted], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Why not all were placed. `nodes`: what each living node has in all; `free`: what is free in the whole cluster."""
    needed = total(wanted)
    has: Counter[str] = Counter()
    for node in nodes:
        has.update({name: int(number) for name, number in node.items() if name in needed})
    missing = [
        f"{_amount(name, number)} wanted, {_amount(name, has[name])} there, {_amount(name, free.get(name, 0.0))} free"
        for name, number in needed.items()
        if free.get(name, 0.0) < number
    ]
    spread = sum(each.spread for each in wanted)
    if spread > len(nodes):
        missing.append(
            f"{spread} nodes wanted, one for each server (cluster.place.servers.spread), {len(nodes)} there"
        )
    large = max(wanted, key=lambda each: sum(bundle(each.resources).values()), default=None)
    if not missing and large is not None:
        missing.append(f"no node has room for {large.name}, which wants {_all(bundle(large.resources))}")
    return f"{len(nodes)} nodes: {'; '.join(missing)}"


def _all(wanted: Bundle) -> str:
    return ", ".join(_amount(name, number) for name, number in wanted.items())


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{number / 2**30:.1f} GiB of memory"
    return f"{number:g} {name}"
