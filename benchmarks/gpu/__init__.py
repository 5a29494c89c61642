"""`scripts/gpu`: what of this project runs on an NVIDIA GPU, and how fast; see `benchmarks.gpu.__main__`."""
