"""Payloads that stay where they are: attach, stage a filled slot, locate a version."""

from psserver.service.errors import invalid, precondition
from psserver.service.guard.calls import Caller
from psserver.service.net.payloads import claim_of
from psserver.service.store.host import ShardHost
from psserver.service.store.shared_memory import Attachment, to_wire
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.transport import segments
from pswire.transport.segments import SegmentError
from pswire.v1 import shard_pb2


async def attach(
    host: ShardHost, request: shard_pb2.Attach, caller: Caller
) -> tuple[Attachment | None, shard_pb2.Attached]:
    """Memory for a worker of this machine, or why there is none. Raises Refused as `reason_against`."""
    reason = await reason_against(host, request, caller) or await host.attachments.begin(
        request.worker, caller
    )
    if reason is None:
        try:
            attachment = host.sharing.lend(host.elements)
        except SegmentError as error:
            reason = str(error)
    if reason is not None:
        return None, shard_pb2.Attached(refusal=reason)
    control, *slots = map(to_wire, attachment.places)
    versions = host.options.arena_versions
    return attachment, shard_pb2.Attached(control=control, slots=slots, arena_versions=versions)


async def reason_against(host: ShardHost, request: shard_pb2.Attach, caller: Caller) -> str | None:
    """Why no memory is shared with this worker; None when it can be. Raises Refused for another job, plan or worker."""
    shard = await host.claims.admit(claim_of(request), request.plan, request.after, caller)
    if host.sharing.refusal is not None:
        return host.sharing.refusal
    if request.place != segments.here():
        return f"server {host.server} is on another machine, or in another process namespace"
    if shard.layout.elements == 0:
        return f"server {host.server} holds no part of the model"
    return None


async def stage(
    host: ShardHost,
    header: shard_pb2.PushHeader,
    attachment: Attachment,
    number: int,
    caller: Caller,
) -> Slot:
    """Stage the payload that the worker wrote into its slot: it is its ticket's then. Raises Refused."""
    shard = await host.claims.admit(claim_of(header), header.plan, header.after, caller)
    if not attachment.holds(number):
        raise invalid(
            f"payload of ticket {header.ticket}: expected a slot that was lent, got number {number}"
        )
    if not attachment.fits(shard.layout.elements):
        raise precondition("the job's model is another one since this memory was lent; join again")
    # A copy: the worker could write into its slot at any time, and what was received must be what is committed,
    # checked and applied.
    slot = await host.pushes.begin(shard, header.ticket, header.worker, caller)
    finite = False
    try:
        filled = attachment.values(number)
        bad = await host.heavy.run(filled.nbytes, lambda: shard.checks.copy_in(slot, filled, 0))
        if bad is not None:
            raise invalid(f"payload of ticket {header.ticket}: expected finite numbers, got {bad}")
        finite = True
    finally:
        if not finite:
            host.pushes.give_up(shard, slot)
    return host.finish_push(shard, slot)


def locate(
    host: ShardHost, shard: Shard, ticket: int, version: int, worker: str, attachment: Attachment
) -> shard_pb2.Located | None:
    """Where the ticket's version lies, pinned for reading there; None when it has to be sent."""
    found = host.reading.in_place(shard, ticket, version, worker, attachment.word)
    if found is None:
        return None
    place, live = found
    return shard_pb2.Located(segment=to_wire(place), live=[other.token for other in live])
