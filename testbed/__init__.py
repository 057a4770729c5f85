"""A testbed for training one model across data centers joined by an emulated wide-area network."""

__version__ = "0.1.0"
