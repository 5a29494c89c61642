"""The limits of what peers may cost a server, each with its reason. What it holds for them has one account
(`psserver.service.guard.memory`); each field of each message has its bound in protos/pswire/v1.

Strangers are not kept apart from each other. Without TLS, bind to the loopback or to a trusted network.
"""

from typing import Final

from pswire.patience import CHUNK_SECONDS

# Calls at once: a worker has two, each takes some 30 kB; beyond that one is refused rather than left waiting.
CALLS: Final = 32_768
# Connections to the data port: each takes a descriptor; beyond that one is refused, and its worker uses gRPC.
CONNECTIONS: Final = 16_384
# Calls and connections without a first message: each may hold one of 4 MiB.
# Beyond that the oldest is cut.
UNPROVEN: Final = 128
# Connections to the metrics port; beyond that one is closed at once.
METRICS_CONNECTIONS: Final = 16
# Seconds for the first message of a call, which may carry a chunk.
FIRST_MESSAGE: Final = 10.0 + CHUNK_SECONDS
# Bytes that are kept of all names that ever joined, to the job's end: some 40,000.
NAMES: Final = 64 * 2**20
# Payload calls of one member, each with one read at a time: two are in use, others are left of broken connections.
# Beyond that the oldest is cut.
MEMBER_CALLS: Final = 4
# Notices that a session leaves unread, each of some 512 bytes; beyond that it is cut.
OUTBOX: Final = 4096
# The pace of a member: what it spends at once, and per second. A message of its session that belongs to no ticket
# spends 1. A Join, or a new session, spends JOIN: each leaves lines in logs.
BURST: Final = 1000
PER_SECOND: Final = 100.0
JOIN: Final = 25
