"""How bytes travel: chunk framing, sockets, shared memory, wire dtypes and channel options."""
