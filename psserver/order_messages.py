"""The messages of orders, which server 0 sends to the other servers."""

from typing import Final

from psserver.decisions.orders import Order
from pswire.messages import OneofCodec
from pswire.v1 import shard_pb2

ORDERS: Final = OneofCodec[Order, shard_pb2.Decision](Order, shard_pb2.Decision)
