"""How one server serves hundreds of workers: light clients in one event loop, and what each commit costs."""
