"""One shard among threads: what they share of it, who executes its orders, who reads and writes payloads."""
