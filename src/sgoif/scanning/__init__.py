"""Data in, a run out: finds label errors in pictures, texts, tables and embeddings, without a training loop."""

from collections.abc import Callable

__all__ = ["Progress", "no_progress"]

Progress = Callable[[str, int, int], None]  # what is done, how much of it, how much there is


def no_progress(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
