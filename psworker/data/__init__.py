"""Payloads between a worker and its servers: weights are pulled, gradients pushed, over any transport."""
