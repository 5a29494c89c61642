"""Engine "ray": places by placement groups, processes by actors that hold a keeper each, and a pipe to each keeper."""

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pslab.launch.engines.launcher import PlaceError, Task, Wanted
from pslab.launch.engines.nodes import NodesLauncher
from pslab.launch.engines.placement import Node
from pslab.launch.engines.ray.nodes import NodesError, ThrowAway
from pslab.launch.engines.ray.options import RayOptions, bundle, shortage, total
from pslab.launch.events import signals_kept
from pslab.launch.keeping.kept import Pipe

# Seconds of one question for news: the answer comes as soon as there are any.
PATIENCE = 10.0


class ActorPipe:
    """As `pslab.launch.keeping.kept.Pipe`. The actor may still wait for its place: then `read` waits for it."""

    def __init__(self, actor: Any) -> None:
        """`actor`: a handle of `pslab.launch.engines.ray.actor.KeeperActor`."""
        # Here and not above: what imports this module need not have Ray.
        import ray
        from ray.exceptions import RayError

        self._ray, self._error = ray, RayError
        self._actor = actor
        self._lost = ""

    def write(self, content: bytes) -> None:
        """Raises OSError where nobody takes it."""
        try:
            taken = self._ray.get(self._actor.write.remote(content))
        except self._error as error:
            raise OSError(told(error)) from error
        if not taken:
            raise OSError("the keeper has ended")

    def read(self) -> bytes:
        """What there is, at least a byte; nothing at the end."""
        while True:
            try:
                found = self._ray.get(self._actor.read.remote(PATIENCE))
            except self._error as error:
                self._lost = told(error)
                return b""
            if found is not None:
                return bytes(found)

    def kill(self) -> None:
        """The actor's end is the keeper's, which ends the process."""
        with suppress(self._error, ValueError):
            self._ray.kill(self._actor)

    def close(self) -> str:
        """Once `read` has ended. The place is free for another actor then."""
        self.kill()
        return self._lost


def told(error: Exception) -> str:
    """Ray's first sentence and, of a lost actor, why. The other lines are about Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = [f"{type(error).__name__}: {lines[0]}"] if lines else [type(error).__name__]
    return " ".join(first + [line for line in lines[1:] if line.startswith("The actor is dead because")])


# Calls to an actor at once: one that reads, one that writes, and those that take their place.
CALLS = 4
# Seconds: for a node's agent to answer, and between two looks for it.
ANSWER, LOOK_EVERY = 2.0, 0.5


class RayLauncher(NodesLauncher):
    """On the cluster that `options` names. `cwd`: where the processes run, the same folder on every node."""

    # A process whose actor was killed is to be gone within a second.
    grace = 0.4

    def __init__(self, options: RayOptions, cwd: Path, wait: float) -> None:
        super().__init__(cwd, wait)
        self._options = options
        self._throw_away: ThrowAway | None = None
        self._connected = False
        self._over = threading.Event()
        self._one = threading.Lock()
        self._groups: list[Any] = []
        # By process: its placement group, and its number there.
        self._bundles: dict[str, tuple[Any, int]] = {}

    def reserve(self, wanted: Sequence[Wanted]) -> None:
        """As `Launcher.reserve`. The time that a throw-away cluster takes to start is beside `wait`."""
        self._connect(wanted)
        import ray

        self._wanted = {each.name: each for each in wanted}
        servers = [each for each in wanted if each.role == "server"]
        workers = [each for each in wanted if each.role == "worker"]
        spread = any(each.spread for each in servers)
        self._group(servers, "STRICT_SPREAD" if spread else "PACK")
        self._group(workers, "PACK")
        ready = [group.ready() for group in self._groups]
        done, _ = ray.wait(ready, num_returns=len(ready), timeout=self.wait)
        if len(done) < len(ready):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            # What the placed half of this run holds was free for it.
            placed = [each for each in wanted if self._told_of(each.name)]
            free = Counter(ray.available_resources()) + Counter(total(placed))
            self._release()
            raise PlaceError(f"no room within {self.wait:g} s: {shortage(wanted, nodes, free)}")
        self._places = {name: self._node_of(name) for name in self._bundles}

    def nodes(self) -> Sequence[Node]:
        """Those that live."""
        import ray

        return [
            Node(str(node["NodeManagerHostname"]), str(node["NodeManagerAddress"]))
            for node in ray.nodes()
            if node["Alive"]
        ]

    def pipe(self, node: Node, task: Task, log: int) -> Pipe:
        """To a new actor in the task's place; it begins where and when there is one."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from pslab.launch.engines.ray.actor import KeeperActor

        self._await_node(task.name)
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
        """As `Launcher.close`."""
        self._over.set()
        super().close()
        # Whoever connects at this moment finds out that it is over.
        with self._one:
            pass
        if self._connected:
            import ray

            self._release()
            ray.shutdown()
        if self._throw_away is not None:
            self._throw_away.close()

    def _connect(self, wanted: Sequence[Wanted]) -> None:
        """Raises PlaceError."""
        with self._one:
            if self._over.is_set():
                raise PlaceError("the run has ended")
            address = self._options.address or self._made(wanted)
            # Nobody connects again by accident, once the run is over.
            os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
            import ray
            from ray._private import worker

            # Warnings about this thread, which handles no signals, and about nodes that are started.
            logging.getLogger("ray").setLevel(logging.ERROR)
            # What Ray prints for people would come between the lines of --json; its debugger sets this, too.
            worker._worker_logs_enabled = False
            try:
                # Of its logs every line would come once per node, and not into the run's.
                with signals_kept():
                    ray.init(address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise PlaceError(f"no Ray cluster at {address}: {error}") from error
            self._connected = True

    def _made(self, wanted: Sequence[Wanted]) -> str:
        """The address of a cluster for this run alone. Raises PlaceError."""
        try:
            # Any of its nodes takes all: they share this machine, whatever they are told to have.
            self._throw_away = ThrowAway([int(total(wanted)["CPU"])] * self._options.nodes)
        except NodesError as error:
            raise PlaceError(str(error)) from error
        os.environ.update(self._throw_away.environment)
        return self._throw_away.address

    def _group(self, wanted: Sequence[Wanted], strategy: str) -> None:
        from ray.util.placement_group import placement_group

        if not wanted:
            return
        group = placement_group([bundle(each.resources) for each in wanted], strategy=strategy)
        self._groups.append(group)
        self._bundles |= {each.name: (group, index) for index, each in enumerate(wanted)}

    def _node_of(self, name: str) -> Node:
        node = self._told_of(name)
        return Node(str(node["NodeManagerHostname"]), str(node["NodeManagerAddress"]))

    def _told_of(self, name: str) -> dict[str, Any]:
        """What Ray says of the node on which the process has its place; nothing while it has none."""
        import ray
        from ray.util import placement_group_table

        group, index = self._bundles[name]
        number = placement_group_table(group)["bundles_to_node_id"].get(index)
        return next((each for each in ray.nodes() if each["NodeID"] == number and each["Alive"]), {})

    def _await_node(self, name: str) -> None:
        """Ray takes ten seconds to notice that a node is gone and to find another place; an actor that is made
        meanwhile is sent there and lost. Raises OSError where there is no place in time."""
        deadline = time.monotonic() + self.wait
        while True:
            node = self._told_of(name)
            try:
                if node:
                    head = (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
                    socket.create_connection(head, ANSWER).close()
                    return
            except OSError:
                node = {}
            if time.monotonic() >= deadline or self._over.wait(LOOK_EVERY):
                raise OSError("its node is gone, and there is no other one with room")

    def _release(self) -> None:
        from ray.util import remove_placement_group

        while self._groups:
            remove_placement_group(self._groups.pop())
