"""The decision log: its entries, the orders that they give to shards, and how both are written and read."""
