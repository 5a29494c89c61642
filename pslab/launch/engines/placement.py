"""Which process is on which node: pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pslab.launch.engines.launcher import PlaceError, Resources, Wanted


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with room. None: as much as anybody wants. `address`: where the others reach it; `workers`: at most."""

    name: str
    address: str = ""
    cpus: int | None = None
    workers: int | None = None


@dataclass(slots=True)
class _Room:
    node: Node
    cpus: int = 0
    servers: int = 0
    workers: int = 0
    names: list[str] = field(default_factory=list)

    def takes(self, wanted: Wanted) -> bool:
        if wanted.spread and self.servers:
            return False
        full = self.node.workers is not None and self.workers >= self.node.workers
        if wanted.role == "worker" and full:
            return False
        return self.node.cpus is None or self.cpus + cpus_of(wanted.resources) <= self.node.cpus

    def take(self, wanted: Wanted) -> None:
        self.cpus += cpus_of(wanted.resources)
        self.names.append(wanted.name)
        if wanted.role == "server":
            self.servers += 1
        else:
            self.workers += 1

    @property
    def load(self) -> float:
        """Of what limits it, the share that is taken; without a limit, the number of processes."""
        if self.node.cpus:
            return self.cpus / self.node.cpus
        return (self.workers / self.node.workers) if self.node.workers else len(self.names)

    def __str__(self) -> str:
        said = []
        if self.node.cpus is not None:
            said.append(f"{self.node.cpus - self.cpus} of {self.node.cpus} cpus")
        if self.node.workers is not None:
            said.append(f"{self.node.workers - self.workers} of {self.node.workers} workers")
        return f"{self.node.name} {' and '.join(said) or 'any number'}"


def cpus_of(resources: Resources) -> int:
    """A process for which nothing is said has one."""
    return resources.cpus or 1


def assign(nodes: Sequence[Node], wanted: Iterable[Wanted]) -> dict[str, Node]:
    """A node for each process. Servers fill one node after the other, or, spread, have one each; workers go where most
    is free, and first to nodes without servers. Raises PlaceError."""
    rooms, everybody = [_Room(node) for node in nodes], list(wanted)
    places: dict[str, Node] = {}
    for each in everybody:
        free = [room for room in rooms if room.takes(each)]
        if not free:
            raise PlaceError(_refusal(each, rooms, len(everybody)))
        chosen = free[0] if each.role == "server" else min(free, key=_fullness)
        chosen.take(each)
        places[each.name] = chosen.node
    return places


def _fullness(room: _Room) -> tuple[float, int]:
    return room.load, room.servers


def _refusal(each: Wanted, rooms: Sequence[_Room], total: int) -> str:
    number = cpus_of(each.resources)
    wish = f"{number} {'cpu' if number == 1 else 'cpus'}"
    if each.spread:
        wish += " on a node without another server"
    free = ", ".join(str(room) for room in rooms) or "no node"
    return f"no room for {each.name} of {total} processes: wanted {wish}; still available: {free}"
