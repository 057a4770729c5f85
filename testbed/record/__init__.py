"""What a run leaves on disk, written as it happens and read back: events, frames and the facts of the run."""
