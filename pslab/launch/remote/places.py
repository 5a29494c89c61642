"""Which process of a run goes to which node, and to which other one when its node is lost. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pslab.launch.engines.launcher import PlaceError, Resources, WantedPlace


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with room for processes.

    `address`: where the other nodes reach it. `cpus` and `workers`: capacity; None for no limit.
    """

    name: str
    address: str = ""
    cpus: int | None = None
    workers: int | None = None


def cpus_of(resources: Resources) -> int:
    """Return the CPUs to reserve: one if none are requested."""
    return resources.cpus or 1


@dataclass(frozen=True, slots=True)
class _Room:
    """A node with the processes that have a place there."""

    node: Node
    held: Sequence[WantedPlace]

    @property
    def cpus(self) -> int:
        return sum(cpus_of(each.resources) for each in self.held)

    @property
    def servers(self) -> int:
        return sum(each.role == "server" for each in self.held)

    @property
    def workers(self) -> int:
        return len(self.held) - self.servers

    def fits(self, wanted: WantedPlace) -> bool:
        if wanted.spread and self.servers:
            return False
        full = self.node.workers is not None and self.workers >= self.node.workers
        if wanted.role == "worker" and full:
            return False
        return self.node.cpus is None or self.cpus + cpus_of(wanted.resources) <= self.node.cpus

    @property
    def load(self) -> float:
        """The occupied share of the limiting capacity; without a limit, the number of processes."""
        if self.node.cpus:
            return self.cpus / self.node.cpus
        return (self.workers / self.node.workers) if self.node.workers else len(self.held)

    def __str__(self) -> str:
        free = []
        if self.node.cpus is not None:
            free.append(f"{self.node.cpus - self.cpus} of {self.node.cpus} cpus")
        if self.node.workers is not None:
            free.append(f"{self.node.workers - self.workers} of {self.node.workers} workers")
        return f"{self.node.name} {' and '.join(free) or 'any number'}"


class Places:
    """The `node` of each process, by name; `moved`: who has had another one after a loss.

    Servers fill one node after the other, or, spread or apart, get one each. Workers go to the node with the lowest
    load, preferring nodes without servers.
    """

    def __init__(self, nodes: Sequence[Node], wanted: Sequence[WantedPlace]) -> None:
        """Give each process a node. Raises PlaceError."""
        self._nodes, self._wanted = nodes, {each.name: each for each in wanted}
        self.node: dict[str, Node] = {}
        self.moved: set[str] = set()
        # Names of nodes that were lost, and not tried again since.
        self._lost: set[str] = set()
        for each in wanted:
            node = self._best(each)
            if node is None:
                raise PlaceError(self._refusal(each))
            self.node[each.name] = node

    def move(self, name: str) -> bool:
        """Give a process whose node was lost another one with room; return whether there is one.

        Without one the process stays where it was, and lost nodes count again: any of them may be back.
        """
        self._lost.add(self.node[name].name)
        node = self._best(self._wanted[name])
        if node is None:
            self._lost.clear()
            return False
        self.node[name] = node
        self.moved.add(name)
        return True

    def _best(self, wanted: WantedPlace) -> Node | None:
        free = [room for room in self._rooms() if room.fits(wanted)]
        if not free:
            return None
        if wanted.role == "worker":
            return min(free, key=lambda room: (room.load, room.servers)).node
        if wanted.apart:
            partner = self.node.get(wanted.partner)
            return min(free, key=lambda room: (room.node == partner, room.servers)).node
        return free[0].node

    def _rooms(self) -> list[_Room]:
        """Return the nodes that are not lost."""
        held: defaultdict[str, list[WantedPlace]] = defaultdict(list)
        for name, node in self.node.items():
            held[node.name].append(self._wanted[name])
        return [_Room(node, held[node.name]) for node in self._nodes if node.name not in self._lost]

    def _refusal(self, each: WantedPlace) -> str:
        number = cpus_of(each.resources)
        wish = f"{number} {'cpu' if number == 1 else 'cpus'}"
        if each.spread:
            wish += " on a node without another server"
        free = ", ".join(str(room) for room in self._rooms()) or "no node"
        return f"no room for {each.name} of {len(self._wanted)} processes: wanted {wish}; still available: {free}"
