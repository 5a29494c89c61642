"""gRPC channel and server options on which both ends must agree.

Liveness: each side pings a connection on which it received nothing for three
tenths of `worker_timeout`, and gives the answer as long again, so a dead peer
is noticed within six tenths of the time that the others are promised to wait
at most. The coordinator then waits a third for it to come back; what is left
is for noticing and deciding. gRPC sends no two pings within a second: a `worker_timeout` below 3 s is
kept only to within a second. A server must accept pings that often, or it
would close the connection for "too many pings".
"""

from typing import Final

Options = list[tuple[str, int]]

# Payloads travel in chunks of a few MiB; anything near this bound is not ours.
MESSAGE_BYTES: Final = 64 * 2**20
# What a server takes of a stream before it is read. At 1 ms of latency it allows 4 GB/s.
UNREAD_BYTES: Final = 4 * 2**20


def _shared(worker_timeout: float) -> Options:
    if not worker_timeout > 0:
        raise ValueError(f"worker_timeout: expected seconds > 0, got {worker_timeout}")
    interval = max(1, round(worker_timeout * 300))
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        # A chunk in one frame rather than in 128 of the default size; the window bounds what is under way.
        ("grpc.http2.max_frame_size", 2**24 - 1),
        ("grpc.keepalive_time_ms", interval),
        ("grpc.keepalive_timeout_ms", interval),
        # Without this one, the answer to a ping is waited for a minute, whatever keepalive_timeout says.
        ("grpc.http2.ping_timeout_ms", interval),
        ("grpc.keepalive_permit_without_calls", 1),
        # 0: no limit, since an idle session has no data frames between pings.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def SERVER_OPTIONS(worker_timeout: float) -> Options:
    """For `grpc.server`; `worker_timeout` in seconds. Raises ValueError unless it is > 0."""
    return [
        *_shared(worker_timeout),
        # Without this, two servers may share a port and steal each other's calls.
        ("grpc.so_reuseport", 0),
        # A payload that is not admitted yet waits at its worker, not here: left to itself, gRPC widens
        # the window of a fast connection until it holds whole payloads.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # Half of the interval at which clients ping: timers are allowed to be early.
        ("grpc.http2.min_ping_interval_without_data_ms", max(1, round(worker_timeout * 150))),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def CHANNEL_OPTIONS(worker_timeout: float) -> Options:
    """For `grpc.insecure_channel`; `worker_timeout` in seconds. Raises ValueError unless it is > 0."""
    return [
        *_shared(worker_timeout),
        # Servers of a cluster are reached directly, whatever proxy the shell is set up for.
        ("grpc.enable_http_proxy", 0),
        # A server that comes back is found again within two seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
