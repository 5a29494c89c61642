"""The messages of the protocol's values, on both ends: what workers and the coordinator tell each other, and orders."""

from typing import Final

from pswire import protocol
from pswire.decisions import orders
from pswire.message_codec import OneofCodec
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

# Characters of a reason: a policy, or an exception of the user's, may say anything. Of a worker's, the log keeps fewer.
REASON: Final = 2000
LOGGED_REASON: Final = 200

REQUESTS: Final = OneofCodec[protocol.Request, pb.SessionRequest](
    protocol.Request, pb.SessionRequest, sent=REASON, taken=LOGGED_REASON
)
EVENTS: Final = OneofCodec[protocol.Event, pb.SessionEvent](
    protocol.Event, pb.SessionEvent, sent=REASON, taken=REASON
)
ORDERS: Final = OneofCodec[orders.Order, shard_pb2.Decision](orders.Order, shard_pb2.Decision)
