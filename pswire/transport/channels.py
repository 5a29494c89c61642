"""gRPC channel and server options on which both ends must agree.

Liveness: each side pings a connection on which it received nothing for `pswire.patience.PING` of `worker_timeout`. The
server that hosts the coordinator notices a dead worker within six tenths of `worker_timeout`, which is the longest that
the others are promised to wait. It then allows a third of it for the worker to come back; the remainder is for noticing
and deciding. A worker's control connection waits less for an answer, so that it has dialled again before the server
gives the worker up. Servers among themselves, and connections for payloads, are patient. gRPC never sends two pings
within a second, so a `worker_timeout` below 7 s is kept only to within a second. A server must accept pings at that
rate, or it would close the connection for "too many pings".

A slow link is not a dead peer: frames are so small that one arrives well within the interval, and a ping behind a
payload allows for the payload's time.
"""

from typing import Final

from pswire.patience import SERVER_ANSWER, SLOWEST_LINK, longest_pause, ping_interval, silence, transfer

Options = list[tuple[str, int]]

# Payloads travel in chunks of a few MiB; a message near this bound is not ours.
MESSAGE_BYTES: Final = 64 * 2**20
# The largest message that a server accepts: a chunk of 4 MiB and its header. Each open stream can hold an incomplete
# message of this size in the server's memory, out of sight.
RECEIVED_BYTES: Final = 4 * 2**20 + 2**16
# HTTP/2's window of a stream that nobody reads: about what a stranger can make a server receive for nothing. While a
# message is being read, gRPC widens the window to the rest of that message: with a quarter of this a payload of 67 MB
# takes a sixth longer.
UNREAD_BYTES: Final = 2**20
# Seconds after which a connection without a call is closed; the next call opens it again. When descriptors run out,
# idle connections must not keep newcomers out.
IDLE_CONNECTION: Final = 60.0
# Seconds that an attempt to connect may take, at most between two attempts, and at least between two questions for the
# address of a name.
DIAL: Final = 3.0
MOST_BACKOFF: Final = 1.0
RESOLVE: Final = 0.5
# Seconds that a gRPC server gives a new connection for TLS and the first HTTP/2 frames. Its own default is two minutes,
# which silent connections could use to occupy all descriptors.
HANDSHAKE_SECONDS: Final = 10.0


def _shared(worker_timeout: float, answer: float) -> Options:
    """Return the options of both ends. `answer`: seconds that the answer to a ping may take."""
    if not worker_timeout > 0:
        raise ValueError(f"worker_timeout: expected seconds > 0, got {worker_timeout}")
    interval, patience = _milliseconds(ping_interval(worker_timeout)), _milliseconds(answer)
    # Larger frames cost less, but at least one must arrive in half the time that an answer may take, or a payload in
    # transit would look like silence.
    frame = int(silence(worker_timeout) * SLOWEST_LINK / 2)
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.http2.max_frame_size", min(max(frame, 2**14), 2**24 - 1)),
        ("grpc.keepalive_time_ms", interval),
        ("grpc.keepalive_timeout_ms", patience),
        # Without this, gRPC waits a minute for the answer to a ping, whatever keepalive_timeout says.
        ("grpc.http2.ping_timeout_ms", patience),
        ("grpc.keepalive_permit_without_calls", 1),
        # 0: no limit, since an idle session has no data frames between pings.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _milliseconds(seconds: float) -> int:
    """Convert to gRPC's unit: whole milliseconds, in 31 bits."""
    return int(min(max(1, round(1000 * seconds)), 2**31 - 1))


def SERVER_OPTIONS(worker_timeout: float, *, liveness: bool = True) -> Options:
    """Return options for `grpc.server`; `worker_timeout` in seconds. Raises ValueError unless it is > 0.

    `liveness`: this server decides which workers are dead. Other servers wait `worker_timeout` for an answer.
    """
    answer = SERVER_ANSWER * worker_timeout if liveness else worker_timeout
    return [
        *_shared(worker_timeout, answer),
        # A message is in memory before anything can check it, whoever sends it.
        ("grpc.max_receive_message_length", RECEIVED_BYTES),
        # Otherwise two servers could share a port and steal each other's calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", _milliseconds(IDLE_CONNECTION)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_SECONDS)),
        # A payload that is not admitted yet should wait at its worker, not here. By default gRPC widens the window of a
        # fast connection until it holds whole payloads.
        ("grpc.http2.bdp_probe", 0),
        # A worker has a handful; further calls wait at their client.
        ("grpc.max_concurrent_streams", 128),
        ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
        # Half the interval at which clients ping, because timers may be early.
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(ping_interval(worker_timeout) / 2)),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def CHANNEL_OPTIONS(worker_timeout: float, *, payloads: bool = False, session: bool = False) -> Options:
    """Return options for `grpc.insecure_channel`; `worker_timeout` in seconds. Raises ValueError unless it is > 0.

    `payloads`: a ping on the channel may wait behind everything in transit; and a stream is never moved to another
    connection. `session`: it carries a worker's session, which must be dialled again before the server gives it up.
    """
    answer = silence(worker_timeout) if session else worker_timeout
    if payloads:
        answer = transfer(RECEIVED_BYTES, worker_timeout)
    # By default gRPC announces a window of 4 MiB at once. On a slow link the server's pings would wait behind all of it
    # for longer than the server waits for the answer. Without the probe, the window is what the message being read
    # needs.
    window = [("grpc.http2.bdp_probe", 0)] if payloads else []
    # A stream that meets the end of a server is otherwise tried again out of sight. If that one cannot be reached, the
    # call fails, and yet (grpcio 1.85) a thread that waits for its answer may wait for ever. Workers try again anyway.
    retries = [("grpc.enable_retries", 0)] if payloads else []
    return [
        *_shared(worker_timeout, answer),
        *window,
        *retries,
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        # Servers of a cluster are reached directly, whatever proxy the environment names.
        ("grpc.enable_http_proxy", 0),
        # Reconnect soon to a server that comes back. A restarted server may have another address: by default gRPC tries
        # a dead one for 20 s, and asks for the address of a name at most every 30 s.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", _milliseconds(min(longest_pause(worker_timeout), MOST_BACKOFF))),
        ("grpc.min_reconnect_backoff_ms", _milliseconds(DIAL)),
        ("grpc.dns_min_time_between_resolutions_ms", _milliseconds(RESOLVE)),
    ]
