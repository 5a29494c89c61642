"""The network of a server: gRPC methods, sockets and shared memory for payloads, and the event loop."""
