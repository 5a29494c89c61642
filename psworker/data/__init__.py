"""Payloads between a worker and its servers: weights in, gradients out, over any transport."""
