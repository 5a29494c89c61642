"""`scripts/bench availability`: what checkpoints, recovery and the second copy cost."""
