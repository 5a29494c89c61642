"""The event loop of a server: one thread that owns everything, how others ask it, what runs beside it."""
