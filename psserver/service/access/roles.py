"""Who may call what: one table of every method that a server has. What is not in it nobody may call."""

from collections.abc import Mapping
from typing import Final

from pswire.security.names import Role

_SERVER, _WORKER = frozenset({Role.SERVER}), frozenset({Role.WORKER})
# Whoever looks, and changes nothing.
_LOOKS = frozenset({Role.OBSERVER, Role.ADMIN})
# It says whether a server is there, and no more.
_ALL = frozenset(Role)

ROLES: Final[Mapping[str, frozenset[Role]]] = {
    "/pswire.v1.Coordinator/Join": _WORKER,
    "/pswire.v1.Coordinator/Session": _WORKER,
    "/pswire.v1.Coordinator/GatherEpoch": _WORKER,
    # Where a server is.
    "/pswire.v1.Coordinator/Locate": _SERVER,
    # Names, counts and times; no weights.
    "/pswire.v1.Coordinator/Status": _LOOKS | _SERVER,
    "/pswire.v1.Shard/Push": _WORKER,
    # Server 0 reads the last version of the others.
    "/pswire.v1.Shard/Pull": _WORKER | _SERVER,
    "/pswire.v1.Shard/Exchange": _WORKER,
    # Open, every order, and the end of the server's job.
    "/pswire.v1.Shard/Follow": _SERVER,
    "/grpc.health.v1.Health/Check": _ALL,
    "/grpc.health.v1.Health/List": _ALL,
    "/grpc.health.v1.Health/Watch": _ALL,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _LOOKS,
}
# Of the metrics' port, which is no method of gRPC.
METRICS: Final = _LOOKS | _SERVER
