"""Limits on concurrent calls, each of which may hold memory that only the transport sees."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from psserver.service.errors import Refused
from psserver.service.guard.strangers import Strangers
from psserver.service.guard.watch import Caller, Watch


class ConcurrentCalls:
    """At most `most` at once: of more, the oldest of the address that has the most is cut. The loop owns it."""

    def __init__(self, most: int) -> None:
        self._calls: Strangers[Caller] = Strangers(most)

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def one(self, caller: Caller) -> Iterator[None]:
        """It is one of them inside the block."""
        for oldest in self._calls.came(caller, caller.address):
            oldest.cancel()
        try:
            yield
        finally:
            self._calls.gone(caller)


class MemberCalls:
    """Payload calls by the member whose they are, once that is proven. The loop's thread owns it.

    `most`: of one member, now.
    """

    def __init__(self, most: Callable[[], int], watch: Watch) -> None:
        self._most, self._watch = most, watch
        self._of: dict[str, dict[Caller, None]] = {}
        self._whose: dict[Caller, str] = {}
        # Then those that have ended are looked for among all.
        self._enough = 64

    def whose(self, caller: Caller) -> str | None:
        """The member's name; None while nobody has proven to be one."""
        return self._whose.get(caller)

    def proven(self, worker: str, caller: Caller) -> None:
        """The call is this member's. Of more than it may have, the oldest are cut: a worker that begins anew leaves
        broken ones behind. Raises Refused where those are cut already, and hold what the member does not read."""
        if self._whose.get(caller) == worker:
            return
        self._forget(list(self._of.get(worker, ())))
        if len(self._whose) >= self._enough:
            self._forget(list(self._whose))
            self._enough = 64 + 2 * len(self._whose)
        self._forget([caller] if caller in self._whose else [], also_standing=True)
        mine, most = self._of.setdefault(worker, {}), self._most()
        unread = sum(map(self._watch.unread, mine))
        if unread >= most:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{worker!r} has {unread} calls with answers that it does not read: expected it to read or end them",
            )
        self._whose[caller] = worker
        mine[caller] = None
        going = [call for call in mine if not self._watch.unread(call)]
        for oldest in going[: max(0, len(mine) - most)]:
            oldest.cancel()

    def _forget(self, callers: list[Caller], *, also_standing: bool = False) -> None:
        """Those that have ended."""
        for caller in callers:
            if self._watch.stands(caller) and not also_standing:
                continue
            worker = self._whose.pop(caller)
            self._of[worker].pop(caller, None)
            if not self._of[worker]:
                del self._of[worker]
