"""The kinds of peers: their names in targets and results, their labels in tables, and how ours carry payloads."""

TF = "tf"
TF_PACKED = "tf-packed"
GRPC = "grpc"
GRPC_BF16 = "grpc-bf16"
SOCKET = "socket"
SOCKET_BF16 = "socket-bf16"
SHM = "shm"
GRPC_TLS = "grpc-tls"
SOCKET_TLS = "socket-tls"
ALONE = "alone"

# Steps in one call of TF_PACKED.
PACK = 4

LABELS = {
    TF: "TF PSS",
    TF_PACKED: f"TF PSS, {PACK} steps per call",
    GRPC: "ours, gRPC",
    GRPC_BF16: "ours, gRPC, bfloat16",
    SOCKET: "ours, socket",
    SOCKET_BF16: "ours, socket, bfloat16",
    SHM: "ours, shared memory",
    GRPC_TLS: "ours, gRPC, TLS",
    SOCKET_TLS: "ours, socket, TLS",
    ALONE: "our step alone",
}

# Ours: transport and element type.
OURS = {
    GRPC: ("grpc", "float32"),
    GRPC_BF16: ("grpc", "bfloat16"),
    SOCKET: ("socket", "float32"),
    SOCKET_BF16: ("socket", "bfloat16"),
    SHM: ("shared-memory", "float32"),
}
# The same over TLS, with certificates of both ends, and which each is to be held against.
OVER_TLS = {GRPC_TLS: GRPC, SOCKET_TLS: SOCKET}
# Added to the name of a peer whose code is that of another checkout.
OTHER = " of the other"
