"""The kinds of faults, one a file."""
