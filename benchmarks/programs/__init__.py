"""What the benchmark starts as processes of their own, and steers by JSON lines."""
