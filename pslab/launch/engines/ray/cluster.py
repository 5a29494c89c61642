"""Which Ray cluster a run uses: an existing one, or a throw-away one on this machine.

``python -m pslab.launch.engines.ray.cluster CPUS CPUS ...`` is a throw-away cluster with a node for each number of
CPUs. It lives as long as its standard input is open. It is a process of its own, so that its end, however it comes,
ends everything of Ray that it has started.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec

from pslab.launch.engines.launcher import EngineError
from pswire.addresses import AddressError, parse_address
from pswire.extras import how_to_install

# Seconds to reach a cluster's head; Ray itself would try for more than a minute.
REACH = 5.0
# Bytes of the object store: the smallest that Ray accepts. A run stores nothing there.
STORE = 80 << 20
# Seconds for a node to start (two on an idle machine), and for the cluster to end.
START, END = 120.0, 20.0
# Environment of a throw-away cluster. It needs a token, because Ray listens on every interface and runs the code of
# any client.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_AUTH_MODE": "token"}


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The `address` of an existing cluster, or the number of `nodes` of a throw-away one; exactly one is set."""

    address: str = ""
    nodes: int = 0


def choose(address: str, nodes: int, environment: Mapping[str, str] = os.environ) -> RayOptions:
    """Choose the cluster before Ray, which takes seconds to load, is imported.

    `address` comes from the command line and overrides RAY_ADDRESS. Raises EngineError.
    """
    if find_spec("ray") is None:
        raise EngineError(f"engine ray needs Ray: {how_to_install('ray')}")
    if address and nodes:
        raise EngineError(
            "--address names an existing cluster and --nodes makes one for this run: expected one of them, got both"
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
    """Raise EngineError if nothing listens there. "auto" is Ray's word for the cluster that runs on this machine."""
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


class ClusterError(RuntimeError):
    """No throw-away cluster could be started; the text includes Ray's own messages."""


class ThrowAwayCluster:
    """A cluster for one run. `environment`: variables that a client needs to connect."""

    def __init__(self, cpus: Sequence[int]) -> None:
        """Start it and wait until it is ready. Drivers attach to the first node.

        `cpus`: of each node, as Ray is to count them. Raises ClusterError.
        """
        self.environment = {**QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pslab.launch.engines.ray.cluster", *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **self.environment},
            # Ctrl-C on the terminal is for the launcher.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._tail()
            self.close()
            raise ClusterError(f"no Ray cluster of {len(cpus)} nodes could be started here:\n{tail}")
        self.address = str(json.loads(line)["address"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the cluster and leave nothing of it behind."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-12:])


def main(arguments: Sequence[str]) -> None:
    """Run a throw-away cluster; print its address as one line of JSON."""
    head, *others = map(int, arguments)
    with ExitStack() as stack:
        # Not the folder where Ray keeps other clusters and the address that "auto" means.
        folder = tempfile.TemporaryDirectory(prefix="ps-ray-", ignore_cleanup_errors=True)
        os.environ["RAY_TMPDIR"] = stack.enter_context(folder)
        from ray.cluster_utils import Cluster

        first = {"num_cpus": head, "object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        stack.callback(cluster.shutdown)
        for signalled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signalled, lambda number, frame: sys.exit(128 + number))
        for cpus in others:
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE)
        cluster.wait_for_nodes(START)
        print(json.dumps({"address": cluster.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
