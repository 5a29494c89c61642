"""A server that comes back on another address: what server 0 takes its word for.

It has to prove that it knows the job's secret, for this generation of the job; and nobody may be at the address that
server 0 has. Then the job goes back to its newest checkpoint with the new address, as after any loss; workers learn it
when they join the new generation.
"""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from psserver import receipts
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.job.job import Job
from pswire.addresses import Address, AddressError, parse_address


@dataclass(frozen=True, slots=True)
class Located:
    """What a server says of itself. `job` and `proof`: empty where it only asks."""

    server: int
    servers: int
    address: str
    job: str
    proof: bytes


class Moves:
    """Of one generation. `own`: server 0's address; `recovers`: the job outlives the loss of a server."""

    def __init__(
        self,
        job: Job,
        own: Address,
        job_secret: bytes,
        recovers: bool,
        move: Callable[[int, Address], None],
    ) -> None:
        """`move` begins the next generation, with that server at that address."""
        self._job, self._own, self._secret, self._recovers, self._move = job, own, job_secret, recovers, move

    def locate(self, said: Located, when_answered: Callable[[Callable[[], None]], None]) -> Address:
        """Where this server looks for that one, which may be elsewhere from now on. Raises Refused.

        `when_answered` has something done once the answer is on the wire: the end of this generation cuts all calls.
        """
        terms = self._job.terms
        if said.servers != terms.servers or not 1 <= said.server < terms.servers:
            raise precondition(
                f"expected server 1 to {terms.servers - 1} of {terms.servers}, got server {said.server} of "
                f"{said.servers}: give every server as many --ps-hosts"
            )
        try:
            address = parse_address(said.address)
        except AddressError as error:
            raise invalid(f"address: {error}") from error
        follower = self._job.routes.followers[said.server - 1]
        if address == follower.address or said.job != terms.job or not said.proof:
            return follower.address
        self._check(said, address)
        if not follower.missing:
            return follower.address

        def begin() -> None:
            if self._job.stopped() is None:
                self._move(said.server, address)

        when_answered(begin)
        return address

    def _check(self, said: Located, address: Address) -> None:
        if not receipts.moves(self._secret, said.job, said.server, said.address, said.proof):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                f"server {said.server} is not known at {address}: expected a proof by the secret of this job, give all "
                "servers of the job the same PS_JOB_SECRET",
            )
        if not self._recovers or self._job.stopped() is not None:
            raise precondition(
                f"server {said.server} is not known at {address}, and this job does not wait for a server that is "
                "lost: it takes no checkpoints, or --recover-timeout is 0, or it has ended"
            )
        others = {self._own, *(f.address for f in self._job.routes.followers)}
        if not address.port or address in others:
            raise invalid(f"address: expected one of server {said.server} alone, got {address}")
