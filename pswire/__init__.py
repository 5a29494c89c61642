"""The agreement between servers and workers: messages, framing, wire dtypes, the plan, addresses, exit codes.

Every process imports this package at start-up, so it loads nothing heavier than numpy: the experiment file (pydantic)
and bfloat16 (ml_dtypes) load on first use.
"""

__all__ = ["addresses", "config", "exits", "knobs", "model"]
