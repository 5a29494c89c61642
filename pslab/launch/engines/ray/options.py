"""Which cluster is meant, found out before Ray, which takes seconds, is loaded; what a run wants of it, and what is
missing there. Pure."""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from pslab.launch.engines.launcher import EngineError, Resources, Wanted
from pswire.addresses import AddressError, parse_address

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


# Seconds for a cluster's head to be reached: Ray itself would try for more than a minute.
REACH = 5.0


@dataclass(frozen=True, slots=True)
class RayOptions:
    """`address` of an existing cluster, or `nodes` of a throw-away one: one of them is set."""

    address: str = ""
    nodes: int = 0


def chosen(address: str, nodes: int, environment: Mapping[str, str] = os.environ) -> RayOptions:
    """`address` from the command line, else from RAY_ADDRESS. Raises EngineError."""
    if find_spec("ray") is None:
        raise EngineError("engine ray needs Ray: pip install 'paramserver[ray]'")
    if address and nodes:
        raise EngineError(
            "--address is a cluster that there is, --nodes makes one for this run: expected one of them"
        )
    if nodes:
        return RayOptions(nodes=nodes)
    address = address or environment.get("RAY_ADDRESS", "")
    if not address:
        raise EngineError(
            "engine ray: expected --address HOST:PORT (or RAY_ADDRESS) of a Ray cluster; --nodes 3 makes one of three "
            "nodes on this machine for this run only"
        )
    _check_reachable(address)
    return RayOptions(address=address)


def _check_reachable(address: str) -> None:
    """Raises EngineError. "auto" is Ray's own word: whichever cluster runs on this machine."""
    if address == "auto":
        return
    try:
        head = parse_address(address)
    except AddressError as error:
        raise EngineError(
            f"--address: {error}; Ray's client (ray://) is not supported: run ps-lab on a node"
        ) from error
    try:
        socket.create_connection((head.host, head.port), REACH).close()
    except OSError as error:
        raise EngineError(f"no Ray cluster answers at {address}: {error.strerror or error}") from error
