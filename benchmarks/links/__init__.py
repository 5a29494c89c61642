"""Steps over links that are not loopback: network namespaces joined by a bridge, shaped to a rate."""
