"""gRPC channel and server options on which both ends must agree.

Liveness: each side pings a connection on which it received nothing for three
tenths of `worker_timeout`. The server that hosts the coordinator gives the
answer as long again, so a dead worker is noticed within six tenths of the time
that the others are promised to wait at most. The coordinator then waits a third
for it to come back; what is left is for noticing and deciding. Everybody else
is patient: a server that stands still for less than `worker_timeout` loses
nobody. gRPC sends no two pings within a second: a `worker_timeout` below 3 s is
kept only to within a second. A server must accept pings that often, or it
would close the connection for "too many pings".

A slow link is no dead peer: frames are so small that one arrives well within
the interval, and whoever pings behind a payload waits for that, too.
"""

from typing import Final

from pswire.patience import SLOWEST_LINK, ping_interval, transfer

Options = list[tuple[str, int]]

# Payloads travel in chunks of a few MiB; anything near this bound is not ours.
MESSAGE_BYTES: Final = 64 * 2**20
# What a server takes for one message: a chunk of 4 MiB and its header. Half a message of this size lies in the server's
# memory, out of sight, on every stream that somebody keeps open.
RECEIVED_BYTES: Final = 4 * 2**20 + 2**16
# What a server takes of a stream before it is read. At 1 ms of latency it allows 4 GB/s.
UNREAD_BYTES: Final = 4 * 2**20
# Seconds after which a connection without any call is closed; the next call makes it again. Where descriptors run
# out, those who only hold connections must not keep newcomers out.
IDLE_CONNECTION: Final = 60.0
# Seconds that a server of gRPC's gives a new connection for TLS and the first words of HTTP/2; its own default is two
# minutes, for each of as many silent connections as there are descriptors.
HANDSHAKE_SECONDS: Final = 10.0


def _shared(worker_timeout: float, answer: float) -> Options:
    """`answer`: how long that to a ping may take; seconds."""
    if not worker_timeout > 0:
        raise ValueError(f"worker_timeout: expected seconds > 0, got {worker_timeout}")
    interval, patience = _milliseconds(ping_interval(worker_timeout)), _milliseconds(answer)
    # Larger ones cost less; half of what arrives between two pings must be one frame at least, or a payload on its
    # way would look like silence.
    frame = int(ping_interval(worker_timeout) * SLOWEST_LINK / 2)
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.http2.max_frame_size", min(max(frame, 2**14), 2**24 - 1)),
        ("grpc.keepalive_time_ms", interval),
        ("grpc.keepalive_timeout_ms", patience),
        # Without this one, the answer to a ping is waited for a minute, whatever keepalive_timeout says.
        ("grpc.http2.ping_timeout_ms", patience),
        ("grpc.keepalive_permit_without_calls", 1),
        # 0: no limit, since an idle session has no data frames between pings.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _milliseconds(seconds: float) -> int:
    """As gRPC takes them: whole, and in 31 bits."""
    return int(min(max(1, round(1000 * seconds)), 2**31 - 1))


def SERVER_OPTIONS(worker_timeout: float, *, liveness: bool = True) -> Options:
    """For `grpc.server`; `worker_timeout` in seconds. Raises ValueError unless it is > 0.

    `liveness`: it decides which workers are dead. Any other server waits `worker_timeout` for an answer.
    """
    answer = ping_interval(worker_timeout) if liveness else worker_timeout
    return [
        *_shared(worker_timeout, answer),
        # A message is in memory before anybody looks at it, whoever sends it.
        ("grpc.max_receive_message_length", RECEIVED_BYTES),
        # Without this, two servers may share a port and steal each other's calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", _milliseconds(IDLE_CONNECTION)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_SECONDS)),
        # A payload that is not admitted yet waits at its worker, not here: left to itself, gRPC widens
        # the window of a fast connection until it holds whole payloads.
        ("grpc.http2.bdp_probe", 0),
        # A worker has a handful; calls beyond wait at their client.
        ("grpc.max_concurrent_streams", 128),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # Half of the interval at which clients ping: timers are allowed to be early.
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(ping_interval(worker_timeout) / 2)),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def CHANNEL_OPTIONS(worker_timeout: float, *, payloads: bool = False) -> Options:
    """For `grpc.insecure_channel`; `worker_timeout` in seconds. Raises ValueError unless it is > 0.

    `payloads`: a ping on it may wait behind all that is under way.
    """
    answer = transfer(UNREAD_BYTES, worker_timeout) if payloads else worker_timeout
    # Left to itself, gRPC announces a window of 4 MiB at once. On a slow link the server's pings would wait behind all
    # of that, for longer than it waits for their answer. Without the probe, a window is what the message needs
    # that is read.
    window = [("grpc.http2.bdp_probe", 0)] if payloads else []
    return [
        *_shared(worker_timeout, answer),
        *window,
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        # Servers of a cluster are reached directly, whatever proxy the shell is set up for.
        ("grpc.enable_http_proxy", 0),
        # A server that comes back is found again within two seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
