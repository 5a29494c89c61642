"""Exports of runs to other tools: Perfetto, TensorBoard."""
