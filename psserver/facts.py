"""What servers tell about versions, put together for the coordinator."""

from collections import Counter
from collections.abc import Sequence

from psserver.coordinator import inputs
from psserver.shard import VersionMade
from pswire.model.plan import Plan
from pswire.v1 import shard_pb2


def together(version: int, facts: Sequence[VersionMade], plan: Plan) -> inputs.Executed:
    """Return what the facts of all servers about a version say, in the order of the servers.

    One that has nothing to tell about it may be missing.
    """
    kept: Counter[str] = Counter()
    for fact in facts:
        kept.update(fact.kept)
    sizes = {spec.name: spec.size for spec in plan.variables} if kept else {}
    return inputs.Executed(
        version,
        kept.total(),
        sum(fact.elements for fact in facts),
        min(kept, key=lambda name: (-kept[name], name), default=""),
        any(count == sizes.get(name) for name, count in kept.items()),
    )


class VersionFacts:
    """The facts of `servers` servers about versions that not all of them have made.

    A server tells about its versions in their order. One that was restored at a version begins there: about those
    before it, it has nothing to tell.
    """

    def __init__(self, servers: int) -> None:
        self._told: list[dict[int, VersionMade]] = [{} for _ in range(servers)]
        self._newest = [-1] * servers

    def take(self, server: int, fact: VersionMade) -> None:
        """Take a server's fact; one that it tells again changes nothing."""
        if fact.version > self._newest[server]:
            self._newest[server] = fact.version
            self._told[server][fact.version] = fact

    def next(self, told: int, plan: Plan) -> inputs.Executed | None:
        """Return the fact about the first version behind `told`, once all servers have told about it."""
        self.forget(told)
        version = told + 1
        if min(self._newest) < version:
            return None
        found = [own[version] for own in self._told if version in own]
        return together(version, found, plan)

    def forget(self, told: int) -> None:
        """Forget what was told about versions up to `told`."""
        for own in self._told:
            while own and next(iter(own)) <= told:
                del own[next(iter(own))]


def to_wire(fact: VersionMade) -> shard_pb2.Made:
    """Return what a server tells about a version as a message."""
    kept = [shard_pb2.Kept(variable=name, elements=number) for name, number in fact.kept.items()]
    return shard_pb2.Made(version=fact.version, kept=kept, elements=fact.elements)


def from_wire(made: shard_pb2.Made) -> VersionMade:
    """Return what `to_wire` got."""
    return VersionMade(made.version, {each.variable: each.elements for each in made.kept}, made.elements)
