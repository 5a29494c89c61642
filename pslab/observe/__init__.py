"""Runs as other tools see them: Perfetto, TensorBoard, experiment trackers."""
