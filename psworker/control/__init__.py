"""The connection between a worker and the coordinator: Join, the session stream, retries."""
