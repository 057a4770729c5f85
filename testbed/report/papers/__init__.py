"""What the papers report, a data file, and those numbers beside a run's own."""
