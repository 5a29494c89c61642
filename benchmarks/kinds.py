"""The kinds of peers: their names in targets and results, their labels in tables, and how ours carry payloads."""

TF = "tf"
GRPC = "grpc"
GRPC_BF16 = "grpc-bf16"
SOCKET = "socket"
SOCKET_BF16 = "socket-bf16"
SHM = "shm"
INT8 = "socket-int8"
INT4 = "socket-int4"
TOP_K = "socket-top-k"
GRPC_TLS = "grpc-tls"
SOCKET_TLS = "socket-tls"

LABELS = {
    TF: "TF PSS",
    GRPC: "ours, gRPC",
    GRPC_BF16: "ours, gRPC, bfloat16",
    SOCKET: "ours, socket",
    SOCKET_BF16: "ours, socket, bfloat16",
    SHM: "ours, shared memory",
    INT8: "ours, socket, int8 both ways",
    INT4: "ours, socket, int4 both ways",
    TOP_K: "ours, socket, top-k both ways",
    GRPC_TLS: "ours, gRPC, TLS",
    SOCKET_TLS: "ours, socket, TLS",
}

# Ours: transport and wire dtype.
OURS = {
    GRPC: ("grpc", "float32"),
    GRPC_BF16: ("grpc", "bfloat16"),
    SOCKET: ("socket", "float32"),
    SOCKET_BF16: ("socket", "bfloat16"),
    SHM: ("shared-memory", "float32"),
}
# Ours with codecs: slower than float32 on one machine, faster on thin links.
CODECS = {
    INT8: ("socket", "int8/int8"),
    INT4: ("socket", "int4/int4"),
    TOP_K: ("socket", "top-k/top-k"),
}
# Ours over TLS, with certificates of both ends.
OVER_TLS = {GRPC_TLS: ("grpc", "float32"), SOCKET_TLS: ("socket", "float32")}
# What a link may carry: no memory is shared between hosts.
LINKED = (TF, GRPC, SOCKET, SOCKET_BF16, *CODECS)
