"""The decision log: its entries, the orders they give to shards, and how both are written and read."""
