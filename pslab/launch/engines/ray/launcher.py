"""Engine "ray": placement groups reserve places, and actors hold a keeper for each process."""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pslab.launch.engines.launcher import EngineError, PlaceError, Resources, Task, WantedPlace
from pslab.launch.engines.ray.actor import ActorPipe
from pslab.launch.events import signals_kept
from pslab.launch.remote.launcher import RemoteLauncher
from pslab.launch.remote.places import Node, cpus_of
from pslab.launch.remote.process import Pipe
from pswire.addresses import AddressError, parse_address
from pswire.extras import how_to_install

# Amounts by Ray's names of resources; memory in bytes.
Bundle = dict[str, float]

# Seconds to reach a cluster's head; Ray itself would try for more than a minute.
REACH = 5.0


def chosen_cluster(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the cluster that a run uses, before Ray, which takes seconds to load, is imported.

    `address` comes from the command line and overrides RAY_ADDRESS. "auto" is Ray's word for the cluster that runs on
    this machine. Raises EngineError.
    """
    if find_spec("ray") is None:
        raise EngineError(f"engine ray needs Ray: {how_to_install('ray')}")
    address = address or environment.get("RAY_ADDRESS", "")
    if not address:
        raise EngineError(
            "engine ray: expected --address HOST:PORT (or RAY_ADDRESS) of a Ray cluster; `ray start --head` starts one "
            "on this machine, and --address auto uses it"
        )
    if address != "auto":
        _check_reachable(address)
    return address


def _check_reachable(address: str) -> None:
    """Raise EngineError if nothing listens there."""
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


def bundle(resources: Resources) -> Bundle:
    """Return a process's resources as Ray counts them."""
    # Without a number of CPUs, Ray would put any number of processes on one core.
    amounts = {"CPU": cpus_of(resources), "memory": resources.memory, "GPU": resources.gpus}
    return {name: float(number) for name, number in amounts.items() if number}


def total(wanted: Sequence[WantedPlace]) -> Bundle:
    """Return the sum of the bundles of all processes."""
    found: Counter[str] = Counter()
    for each in wanted:
        found.update({name: int(number) for name, number in bundle(each.resources).items()})
    return {name: float(number) for name, number in found.items()}


def shortage(
    wanted: Sequence[WantedPlace], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Explain why not all processes were placed.

    `nodes`: resources of each living node; `free`: free resources of the whole cluster.
    """
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
    largest = max(wanted, key=lambda each: sum(bundle(each.resources).values()), default=None)
    if not missing and largest is not None:
        amounts = ", ".join(_amount(name, number) for name, number in bundle(largest.resources).items())
        missing.append(f"no node has room for {largest.name}, which wants {amounts}")
    return f"{len(nodes)} nodes: {'; '.join(missing)}"


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{number / 2**30:.1f} GiB of memory"
    return f"{number:g} {name}"


# Simultaneous calls to an actor: one that reads, one that writes, and one successor of each.
CALLS = 4
# Seconds for a node's agent to answer, and between two attempts to find a node.
ANSWER, LOOK_EVERY = 2.0, 0.5


class RayLauncher(RemoteLauncher):
    """A `Launcher` on the cluster at `address`. `cwd`: working directory, the same on every node."""

    # Shorter than usual: a process whose actor was killed must be gone within a second.
    grace = 0.4

    def __init__(self, address: str, cwd: Path, wait: float) -> None:
        super().__init__(cwd, wait)
        self._address = address
        self._connected = False
        self._over = threading.Event()
        self._connecting = threading.Lock()
        self._groups: list[Any] = []
        # By process: its placement group, and its index there.
        self._bundles: dict[str, tuple[Any, int]] = {}

    def reserve(self, wanted: Sequence[WantedPlace]) -> None:
        """Implement `Launcher.reserve`."""
        self._connect()
        import ray

        servers = [each for each in wanted if each.role == "server"]
        workers = [each for each in wanted if each.role == "worker"]
        spread, apart = any(each.spread for each in servers), any(each.apart for each in servers)
        self._group(servers, "STRICT_SPREAD" if spread else "SPREAD" if apart else "PACK")
        self._group(workers, "PACK")
        ready = [group.ready() for group in self._groups]
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=self.wait)
        if len(done) < len(ready):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            # What the placed processes of this run hold was free for the run.
            placed = [each for each in wanted if self._ray_node(each.name)]
            free = Counter(ray.available_resources()) + Counter(total(placed))
            self._release()
            raise PlaceError(f"no room within {self.wait:g} s: {shortage(wanted, nodes, free)}")
        self._places = {name: _node(self._ray_node(name)) for name in self._bundles}

    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """Connect to a new actor in the task's place; the actor starts where and when there is one."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from pslab.launch.engines.ray.actor import KeeperActor

        self._places[task.name] = self._await_node(task.name)
        group, index = self._bundles[task.name]
        wants = bundle(task.resources)
        options = {
            "num_cpus": wants["CPU"],
            "num_gpus": wants.get("GPU", 0.0),
            "max_restarts": 0,
            "max_concurrency": CALLS,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        }
        if "memory" in wants:
            options["memory"] = wants["memory"]
        return ActorPipe(ray.remote(KeeperActor).options(**options).remote())

    def close(self) -> None:
        """Implement `Launcher.close`."""
        self._over.set()
        super().close()
        # Wait for a connection attempt in another thread; any later one sees `_over`.
        with self._connecting:
            pass
        if self._connected:
            import ray

            self._release()
            ray.shutdown()

    def _connect(self) -> None:
        """Connect to Ray. Raises PlaceError."""
        with self._connecting:
            if self._over.is_set():
                raise PlaceError("the run has ended")
            # Ray must not connect again by accident once the run is over.
            os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
            import ray
            from ray._private import worker

            # Silence warnings about this thread, which handles no signals, and about nodes that start.
            logging.getLogger("ray").setLevel(logging.ERROR)
            # Ray's messages for people would come between the lines of --json. Ray's debugger sets this too.
            worker._worker_logs_enabled = False
            try:
                # Without `log_to_driver=False` every log line would come once per node, and not into the run's logs.
                with signals_kept():
                    ray.init(self._address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise PlaceError(f"no Ray cluster at {self._address}: {error}") from error
            self._connected = True

    def _group(self, wanted: Sequence[WantedPlace], strategy: str) -> None:
        from ray.util.placement_group import placement_group

        if not wanted:
            return
        group = placement_group([bundle(each.resources) for each in wanted], strategy=strategy)
        self._groups.append(group)
        self._bundles |= {each.name: (group, index) for index, each in enumerate(wanted)}

    def _ray_node(self, name: str) -> dict[str, Any]:
        """Return Ray's record of the node where the process has its place; empty while it has none."""
        import ray
        from ray.util import placement_group_table

        group, index = self._bundles[name]
        number = placement_group_table(group)["bundles_to_node_id"].get(index)
        return next((each for each in ray.nodes() if each["NodeID"] == number and each["Alive"]), {})

    def _await_node(self, name: str) -> Node:
        """Return the process's node once it answers. Raises OSError when there is no place in time.

        Ray takes ten seconds to notice that a node is gone and to find another place; an actor created meanwhile
        would be sent to the lost node.
        """
        deadline = time.monotonic() + self.wait
        while True:
            node = self._ray_node(name)
            try:
                if node:
                    agent = (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
                    socket.create_connection(agent, ANSWER).close()
                    return _node(node)
            except OSError:
                node = {}
            if time.monotonic() >= deadline or self._over.wait(LOOK_EVERY):
                raise OSError("its node is gone, and no other node has room")

    def _release(self) -> None:
        from ray.util import remove_placement_group

        while self._groups:
            remove_placement_group(self._groups.pop())


def _node(record: Mapping[str, Any]) -> Node:
    return Node(str(record["NodeManagerHostname"]), str(record["NodeManagerAddress"]))
