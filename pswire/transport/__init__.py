"""Transport of bytes: chunk framing, sockets, shared memory, wire dtypes and channel options."""
