"""The networks, a file for those of a kind; `base` is how one is found by its name."""
