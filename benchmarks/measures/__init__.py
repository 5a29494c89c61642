"""What is measured, and how: repeated samples, rounds of all peers, limits of the machine, kernels, parts of a step."""
