"""How payloads reach this server: sockets, shared memory, and the copies into and out of arenas."""
