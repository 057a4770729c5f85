"""Turns the records of a run, and nothing else, into tables and pictures."""
