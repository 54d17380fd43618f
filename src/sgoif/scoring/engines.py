"""Who runs the operator on the pieces: this process, or the actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from sgoif.scoring.operator import Gathered, Job, Operator, PieceDone
from sgoif.scoring.pieces import Piece

__all__ = ["Engine", "LocalEngine"]


class Engine(Protocol):
    """Something that scores pieces, each once, in any order."""

    def run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[PieceDone]:
        """Score pieces and tell of each when its part is written."""

    def sample(self, job: Job, pieces: Sequence[Piece], count: int) -> Iterator[tuple[int, Gathered]]:
        """Give what some records of each piece gave, under its number; nothing is written."""


class LocalEngine:
    """One process, one piece after another."""

    def run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[PieceDone]:
        operator = Operator(job)
        for piece in pieces:
            yield operator.score(piece)

    def sample(self, job: Job, pieces: Sequence[Piece], count: int) -> Iterator[tuple[int, Gathered]]:
        operator = Operator(job)
        for piece in pieces:
            yield piece.number, operator.sample(piece, count)
