"""Where tests look inside. Each probe names what it shows.

A renamed field is mended here, once. What a server holds is
shown by `tests.service.probe`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # A worker without TensorFlow uses this file too, and is to start fast.
    from collections.abc import Callable
    from concurrent.futures import Future
    from queue import Queue

    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from pslab.dashboard.observer import Observer
    from pslab.display.progress import Lines
    from pslab.launch.remote.process import CommandPipe
    from psserver.shard import Shard
    from psserver.shard.staging import Staging
    from psworker.data.streams import GrpcStream
    from psworker.link import Link


class SessionProbe:
    """What a worker's session holds. Its objects belong to the session's own threads: look, or take their locks."""

    def __init__(self, session: Link) -> None:
        self._session = session

    def shard(self, server: int = 0) -> Any:
        """The client of one server's shard."""
        return self._session._servers.shards[server]

    def joined(self, server: int = 0) -> Any:
        """The answer to the newest Join, as that server's client has it."""
        return self._session._servers.shards[server]._member.joined

    def carriers(self) -> list[Any]:
        """What carries the requests to each server."""
        return [shard.carrier for shard in self._session._servers.shards]

    @property
    def requests(self) -> Queue[Any] | None:
        """What the control stream is going to send; None while there is no stream."""
        return self._session._stream._sender

    def grant_after(self, ticket: int) -> object:
        """The grant that came ahead of the end of this ticket, if it is here."""
        return self._session._stream._engine.after(ticket)

    @property
    def fetched(self) -> bool:
        """The next version is here, fetched ahead, and the present ticket is not committed."""
        return (fetch := self.fetch_under_way) is not None and fetch.done()

    @property
    def fetch_under_way(self) -> Future[Any] | None:
        return self._session._reader.under_way

    def before_commit(self, action: Callable[[], object]) -> None:
        """Call `action` before every commit that goes apart from its payload."""
        contributor, commit = self._session._contributor, self._session._contributor.commit

        def commit_later(*args: Any) -> None:
            action()
            commit(*args)

        contributor.commit = commit_later  # type: ignore[method-assign]


def forget_socket(carrier: Any) -> None:
    """Close the socket to a server, and do without from now on if there is none."""
    carrier.close()
    carrier._required = False


def send_raw(stream: Any, data: bytes) -> None:
    """Bytes that need not be a frame, on a framed socket."""
    stream._socket.sendall(data)


def send_beneath_tls(stream: Any, data: bytes) -> None:
    """Bytes that need not be TLS, on the plain socket under a framed one."""
    stream._socket._socket.sendall(data)


def staged(shard: Shard, ticket: int) -> NDArray[Any]:
    """The payload that lies complete in staging; shape (elements of the shard,)."""
    return shard.staging._complete[ticket].values


def variables_of(trainer: Any) -> Any:
    """The variables of a trainer in the plan's order; `.found.variables`, `.values()`, `.put(arrays)`."""
    return trainer._variables


def traces_of(trainer: Any) -> int:
    """How often TensorFlow has traced a trainer's step."""
    step = trainer._compute
    functions = (step._adds, step._finishes, step._first_adds, step._first_finishes)
    return sum(each.experimental_get_tracing_count() for each in functions if not step._eager)


def remembered(work: Any) -> list[np.ndarray] | None:
    """What a local rule remembers between contributions."""
    memory: list[np.ndarray] | None = work._memory
    return memory


def print_into(display: Lines, console: Console) -> None:
    display._console = console


def distributed_models() -> list[Any]:
    """What `psworker.keras.distribute` made in this process and nobody has closed."""
    from psworker.keras.fit import distributed

    return list(distributed.OPEN)


def received_bytes(stream: Any) -> int:
    """The size of the buffer that large frames are received into."""
    return len(stream._buffer)


def turns_kept(staging: Staging) -> int:
    """Turns that it holds, of open tickets and of closed ones."""
    return len(staging._turns)


def pid_of(pipe: CommandPipe) -> int:
    """Of the command at the near end of a connection."""
    return pipe._process.pid


def hang_up(pipe: CommandPipe) -> None:
    """The far end reads the end of its input, as when this process was killed."""
    assert pipe._process.stdin is not None
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, pipe._process.stdin.fileno())
    os.close(nobody)


def unsent(stream: GrpcStream) -> int:
    """Requests, and the end of them, that gRPC has not been given yet."""
    return stream._requests.qsize()


def whole_page(observer: Observer) -> str:
    """What a page that has just been opened is sent."""
    return observer._whole()


def embedded_server(job: Any) -> Any:
    """The server that `distribute` started for a model."""
    return job._membership._server


def pretend_strategy(model: Any, strategy: object) -> None:
    """Make a model one that was built under a strategy of TensorFlow."""
    model._distribute_strategy = strategy


def leave_fit(job: Any, reason: str) -> None:
    """Let the worker of a distributed model leave its job."""
    job._steps.leave(reason)


def traces(job: Any) -> int:
    """How often JAX has traced the step of a distributed model."""
    return int(job._steps._step._compute.traces)
