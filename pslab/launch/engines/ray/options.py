"""Which cluster is meant: found out before Ray, which takes seconds, is loaded."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from pslab.launch.engines.launcher import EngineError
from pswire.addresses import AddressError, parse_address

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
