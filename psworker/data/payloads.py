"""What a session pushes: flat arrays, or what gives them when their servers are ready to take them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

# One server's flat payload: float32, or the session's wire dtype (numpy's float16, ml_dtypes' bfloat16). What is
# called instead is called in the thread that sends to that server: so one shard's gradient travels while the
# next one's is still on its way from the device.
Payload = NDArray[Any] | Callable[[], NDArray[Any]]


def array_of(payload: Payload) -> NDArray[Any]:
    return payload() if callable(payload) else payload


class Flat(Protocol):
    """What came of a computation: one array per server."""

    @property
    def flats(self) -> Sequence[NDArray[Any]]: ...


@runtime_checkable
class Lazy(Protocol):
    """The same, made no sooner than they are sent."""

    @property
    def payloads(self) -> Sequence[Payload]: ...


def payloads_of(result: Flat) -> Sequence[Payload]:
    return result.payloads if isinstance(result, Lazy) else result.flats
