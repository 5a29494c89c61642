"""What a coordinator says to server 1 of two, in generated code."""

import json
from typing import Any

import grpc

from pswire.messages import specs_to_wire
from pswire.model.plan import make_plan
from pswire.transport.connecting import stub_of
from pswire.v1 import shard_pb2 as pb
from tests.service.serving import PATIENCE, VARIABLES, Served

PLAN = make_plan(VARIABLES, 2)


def opening(**changed: Any) -> pb.FollowRequest:
    fields: dict[str, Any] = {"job": "job", "task_index": 1, "servers": 2, "secret": b"secret"}
    return pb.FollowRequest(open=pb.Open(**{**fields, **changed}))


def configure(**changed: Any) -> pb.FollowRequest:
    fields: dict[str, Any] = {
        "variables": specs_to_wire(VARIABLES),
        "plan": PLAN.fingerprint,
        "optimizer": json.dumps({"name": "sgd"}),
        "tensors": "{}",
    }
    return pb.FollowRequest(configure=pb.Configure(**{**fields, **changed}))


def decided(*decisions: pb.Decision) -> pb.FollowRequest:
    return pb.FollowRequest(decisions=pb.Decisions(decisions=decisions))


def follow(served: Served, *requests: pb.FollowRequest) -> list[pb.FollowReply]:
    with grpc.insecure_channel(served.address) as channel:
        return list(stub_of(channel, "Shard").Follow(iter(requests), timeout=PATIENCE))
