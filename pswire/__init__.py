"""What servers and workers agree on: messages, framing, wire dtypes, the plan, addresses, exit codes.

Imported by every process at start-up, so nothing heavier than numpy loads
here: the experiment file (pydantic) and bfloat16 (ml_dtypes) load on use.
"""

__all__ = ["addresses", "config", "exits", "knobs", "model"]
