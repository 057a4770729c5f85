"""Training on a GPU, taken apart: what a step asks of it, how long that takes, and whether the results are right."""
