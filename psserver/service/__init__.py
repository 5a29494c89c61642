"""The gRPC shell: the only place with threads, clocks and sockets. It decides nothing."""
