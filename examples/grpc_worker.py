"""A whole worker without this project's library: gRPC, and the messages that protoc makes of protos/pswire/v1.

ps-server --ps-hosts 127.0.0.1:7070 --task-index 0    (in another terminal)
python examples/grpc_worker.py 127.0.0.1:7070

It trains w with one server. With several, Push and Pull go to each, with its part of every variable.
"""

import hashlib
import json
import queue
import secrets
import sys

import grpc
import numpy as np

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2, shard_pb2

channel = grpc.insecure_channel(sys.argv[1])


def method(path, request, reply, kind="unary_unary"):
    return getattr(channel, kind)(f"/pswire.v1.{path}", request.SerializeToString, reply.FromString)


# Join: name the model. The plan is a digest of its variables, in order, and of the number of servers.
w = {"name": "w", "shape": [3], "dtype": "float32", "kind": "trainable"}
plan = hashlib.sha256(f"plan 1 servers 1\n{json.dumps(list(w.values()))}".encode()).hexdigest()
secret, numbers = secrets.token_hex(16), model_pb2.WIRE_DTYPE_FLOAT32
variable = model_pb2.VariableSpec(**{**w, "kind": model_pb2.VARIABLE_KIND_TRAINABLE})
join = pb.JoinRequest(session=secret, variables=[variable], plan=plan, servers=1, wire_dtype=numbers)
member = method("Coordinator/Join", pb.JoinRequest, pb.JoinReply)(join, wait_for_ready=True)
who = {"job": member.job, "worker": member.worker, "incarnation": member.incarnation}
proof = {**who, "membership_token": member.membership_token, "plan": plan, "dtype": numbers}

# The session: one stream of what this worker says, and of what it is told.
said = queue.SimpleQueue()
session = method("Coordinator/Session", pb.SessionRequest, pb.SessionReply, "stream_stream")
told = (event for reply in session(iter(said.get, None)) for event in reply.events)
hello = pb.Hello(**who, session=secret)
said.put(pb.SessionRequest(hello=hello))
pull = method("Shard/Pull", shard_pb2.PullRequest, shard_pb2.PullReply, "unary_stream")
push = method("Shard/Push", shard_pb2.PushRequest, shard_pb2.PushReply, "stream_unary")
commit = method("Coordinator/Commit", pb.CommitRequest, pb.CommitReply)

# Batches: a grant, its version, a gradient under its ticket, and the commit with the server's receipt.
x = np.random.default_rng(0).normal(size=(256, 3)).astype("<f4")
y = x @ np.array([1, -2, 3], "<f4")
batch = member.next_batch
while batch < 200:
    said.put(pb.SessionRequest(ready=pb.Ready()))
    grant = next(event.grant for event in told if event.HasField("grant") or event.HasField("stop"))
    if not grant.ticket:
        break  # the job has stopped
    ticket, values = {"ticket": grant.ticket, "after": grant.index}, np.zeros(3, "<f4")
    if not grant.initialise:  # else this worker gives the first values
        asked = shard_pb2.PullRequest(**proof, **ticket, version=grant.version)
        weights = np.frombuffer(b"".join(reply.chunk for reply in pull(asked)), "<f4")
        values = (2 * x.T @ (x @ weights - y) / len(x)).astype("<f4")
    header = shard_pb2.PushHeader(**proof, **ticket, bytes=values.nbytes)
    receipt = push(iter([shard_pb2.PushRequest(header=header, chunk=values.tobytes())])).receipt
    made = pb.Commit(ticket=grant.ticket, batch=batch, samples=len(x), receipts=[receipt])
    fate = commit(pb.CommitRequest(hello=hello, commit=made)).events[0].disposition
    batch += not grant.initialise
said.put(pb.SessionRequest(done=pb.Done()))
stop = next(event.stop for event in told if event.HasField("stop"))
said.put(pb.SessionRequest(leave=pb.Leave(reason="finished")))
said.put(None)
print(f"{stop.reason} at version {stop.version}: w = {weights.round(3)}")
