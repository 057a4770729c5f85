"""The data sets, a file for each; `base` is how one is found by its name."""
