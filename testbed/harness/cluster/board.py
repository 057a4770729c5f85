"""Where nodes say how far they are, and the driver reads it. An actor; it imports nothing that takes time."""

from __future__ import annotations

from typing import NamedTuple


class Told(NamedTuple):
    """What a node said last of an errand: what it is at, steps done and of how many, and the node's address."""

    what: str
    done: int
    total: int
    node: str


class Board:
    """What was said last of each errand, by the errand's number."""

    def __init__(self) -> None:
        self._told: dict[int, Told] = {}

    def tell(self, number: int, told: Told) -> None:
        """Take in what a node says."""
        self._told[number] = told

    def told(self) -> dict[int, Told]:
        """All of it."""
        return self._told
