"""Who a worker is to one server since its newest Join, and what goes out in that name."""

from dataclasses import dataclass

from pswire.messages import REQUESTS
from pswire.transport.codecs import Encoder
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2, shard_pb2
from psworker.engine import Commit

_FILL = REQUESTS.codecs[Commit].fill


@dataclass(slots=True)
class MemberId:
    """Who a worker is to the servers, since its newest Join."""

    job: str = ""
    worker: str = ""
    incarnation: int = 0
    membership_token: bytes = b""


class Membership:
    """One worker at one server: its name there, what encodes its payloads, and its requests.

    Requests are filled anew for each payload: most of what they say stays. The server's `turn` owns them.
    """

    __slots__ = ("encoder", "hello", "identity", "push", "step")

    def __init__(self, identity: MemberId, encoder: Encoder, plan: str, wire: Wire) -> None:
        self.identity, self.encoder = identity, encoder
        header = shard_pb2.PushHeader(
            job=identity.job,
            worker=identity.worker,
            plan=plan,
            incarnation=identity.incarnation,
            membership_token=identity.membership_token,
            weights_dtype=model_pb2.WIRE_DTYPE_UNSPECIFIED if wire.same else wire.down.number,
        )
        self.push = shard_pb2.ExchangeRequest(push=header)
        # With a commit; `hello` is the one that it holds.
        self.step = shard_pb2.ExchangeRequest(push=header)
        self.hello: pb.Hello | None = None

    def stepping(self, commit: Commit, hello: pb.Hello) -> shard_pb2.ExchangeRequest:
        request = self.step
        if self.hello is not hello:
            request.hello.CopyFrom(hello)
            self.hello = hello
        _FILL(request.commit, commit)
        return request
