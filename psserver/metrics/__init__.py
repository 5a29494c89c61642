"""Prometheus metrics of a ps-server. Not imported while metrics are off."""
