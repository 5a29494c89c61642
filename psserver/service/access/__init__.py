"""Who calls a server, what he may do, and how long the certificates last."""
