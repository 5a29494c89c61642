"""A model as servers and workers lay it out: its variables, and the plan of its shards."""
