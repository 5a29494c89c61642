"""Who may call what: every method that a server has. What is not in the table nobody may call."""

from collections.abc import Iterator, Mapping
from typing import Final

from pswire.security.names import Role
from pswire.v1 import coordinator_pb2, options_pb2, shard_pb2

# Whoever looks, and changes nothing.
_LOOKS = frozenset({Role.OBSERVER, Role.ADMIN})
# It says whether a server is there, and no more.
_ALL = frozenset(Role)


def _declared() -> Iterator[tuple[str, frozenset[Role]]]:
    """Yield our own methods with their callers, as the protos say. Raises TypeError for a method without."""
    for file in (coordinator_pb2, shard_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                callers = method.GetOptions().Extensions[options_pb2.callers]
                if not callers:
                    raise TypeError(f"{method.full_name}: expected callers in protos/pswire/v1, got none")
                names = (options_pb2.Caller.Name(caller).lower() for caller in callers)
                yield f"/{service.full_name}/{method.name}", frozenset(map(Role, names))


ROLES: Final[Mapping[str, frozenset[Role]]] = {
    **dict(_declared()),
    "/grpc.health.v1.Health/Check": _ALL,
    "/grpc.health.v1.Health/List": _ALL,
    "/grpc.health.v1.Health/Watch": _ALL,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _LOOKS,
}
# Of the metrics' port, which is no method of gRPC.
METRICS: Final = _LOOKS | {Role.SERVER}
