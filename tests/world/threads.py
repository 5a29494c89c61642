"""What stands for `threading`, `queue` and executors in the modules of a worker: the same, with the baton.

One thread runs at a time, so nothing here needs a real lock.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from psserver.service.life import servers as life_servers
from psserver.service.replicas import shell
from pswire import running
from pswire.transport import leader
from psworker import ahead
from psworker.control import backoff, epochs, joining, stream
from psworker.data import carrier, reader, shard_client, shard_group, shared_memory, streams, timing
from tests.world.clockwork import Thread, World


class RLock:
    """A lock that its holder may take again."""

    def __init__(self, world: World) -> None:
        self._world, self._held = world, 0
        self._holder: Thread | None = None

    def __enter__(self) -> None:
        if self._holder is not self._world.current:
            while self._holder is not None:
                self._world.wait(lambda: self._holder is None)
            self._holder = self._world.current
        self._held += 1

    def __exit__(self, *_: object) -> None:
        self._held -= 1
        if not self._held:
            self._holder = None

    @contextmanager
    def without(self) -> Iterator[None]:
        """Release it, whatever it is held for, until the end of the block."""
        held, self._held, self._holder = self._held, 0, None
        yield
        self.__enter__()
        self._held = held


class Condition:
    """A condition with that lock."""

    def __init__(self, world: World, lock: RLock) -> None:
        self._world, self._lock, self._told = world, lock, 0

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        now = self._world.process.now
        end = None if timeout is None else now() + timeout
        while not (found := predicate()) and (end is None or now() < end):
            with self._lock.without():
                told = self._told
                self._world.wait(partial(self._changed, told), None if end is None else end - now())
        return found

    def _changed(self, told: int) -> bool:
        return self._told != told

    def notify_all(self) -> None:
        self._told += 1


class Event:
    """A flag to wait for."""

    def __init__(self, world: World) -> None:
        self._world, self._set = world, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._world.wait(self.is_set, timeout)
        return self._set


class SimpleQueue:
    """A queue without a bound."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self.put = self._items.append

    def get(self) -> Any:
        if not self._items:
            self._world.wait(lambda: self._items)
        return self._items.popleft()


class BatonFuture(Future[Any]):
    """A future whose result is waited for with the baton."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._world.wait(self.done, timeout)
        return super().result(0)


class Executor:
    """Makes each call in a thread of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, call: Callable[..., Any], *given: Any) -> BatonFuture:
        future = BatonFuture(self._world)

        def run() -> None:
            try:
                future.set_result(call(*given))
            except Exception as error:
                future.set_exception(error)

        self._world.process.begin(run, "shard")
        return future

    def shutdown(self, wait: bool = True) -> None:
        """Do nothing: calls end by themselves."""


class StartedThread:
    """A thread of the process that makes it."""

    def __init__(
        self, world: World, target: Callable[[], object], name: str = "", daemon: bool = True
    ) -> None:
        self._world, self._target, self._name = world, target, name
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = self._world.process.begin(self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        thread = self._thread
        if thread is not None and not thread.ended:
            self._world.wait(lambda: thread.ended, timeout)


@contextmanager
def baton(world: World) -> Iterator[None]:
    """Let workers wait with the baton, and draw at random from the World's seed."""
    kinds = {"Thread": StartedThread, "Lock": RLock, "RLock": RLock, "Condition": Condition, "Event": Event}
    threads = SimpleNamespace(**{name: partial(kind, world) for name, kind in kinds.items()})
    queues = SimpleNamespace(SimpleQueue=partial(SimpleQueue, world))

    def now() -> float:
        return world.now if world.current is None else world.process.now()

    def wait(futures: Iterable[BatonFuture]) -> None:
        for future in futures:
            if not future.done():
                world.wait(future.done)

    dice = world.dice
    chance = SimpleNamespace(uniform=dice.uniform)
    drawn = {"token_hex": lambda nbytes=16: dice.randbytes(nbytes).hex(), "token_bytes": dice.randbytes}
    changes: list[tuple[Any, dict[str, Any]]] = [
        *((module, {"threading": threads}) for module in (backoff, epochs, stream, carrier, shard_client)),
        *((module, {"threading": threads}) for module in (shard_group, reader, shared_memory, ahead, leader)),
        *((module, {"queue": queues}) for module in (stream, streams, ahead, leader)),
        (backoff, {"random": chance}),
        (ahead, {"Future": partial(BatonFuture, world)}),
        (shard_group, {"ThreadPoolExecutor": lambda *_, **__: Executor(world), "wait": wait}),
        # Each process of the World is another one.
        (joining, {"token": lambda: world.process.token}),
        (life_servers, {"time": SimpleNamespace(sleep=lambda seconds: world.wait(None, seconds))}),
        (running, {"now": now, "system": now}),
        (secrets, drawn),
    ]
    with ExitStack() as patches:
        patches.enter_context(mock.patch.dict(shell.Shell.__init__.__kwdefaults__, {"now": now}))
        patches.enter_context(mock.patch.object(timing.Stopwatch.__init__, "__defaults__", (now,)))
        for module, named in changes:
            patches.enter_context(mock.patch.multiple(module, **named))
        yield
