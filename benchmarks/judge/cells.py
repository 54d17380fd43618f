"""The grid: which trainings are recorded, and which replays of them are judged. Named before any of them was run.

A *training* is watched once, its hold-out as given, and recorded. A *replay* judges its labels with a hold-out
``given`` (as noisy as the training labels), ``trusted`` (the true labels of the same rows) or ``hundred`` (its first
100 rows, as given). A judge of records replays them all. What ``watch`` and ``audit`` themselves answer depends on the
hold-out that they were run with: they were run with another one in a few cells, those of ``Group.watched``, and have no
row of the rest.

Development cells (seeds 0 and 1) are for choices, reported ones (seeds 2 to 4) for figures.
Recording takes about 222 CPU seconds of one core for development, and 364 for the reported cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Cell:
    """A training, by the hold-out that it is watched with, or a replay of one.

    Args:
        data: ``digits``, ``fashion``, ``cifar10`` or ``banking77``.
        noise: ``clean``, ``sym-R``, ``pair-R``, R in percent of all labels; ``aggre`` or ``worst``, labels of people.
        seed: of the draw, the noise and the start; 0 and 1 are development.
        epochs: passes over the training set.
        shape: ``balanced``, or ``tail``: class sizes fall geometrically, to 1:20.
        holdout: ``given``, ``trusted`` or ``hundred``.
    """

    data: str = "digits"
    noise: str = "clean"
    epochs: int = 12
    seed: int = 0
    shape: str = "balanced"
    holdout: str = "given"

    @property
    def name(self) -> str:
        """Short name for tables and files."""
        rest = [part for part in (self.shape, self.holdout) if part not in ("balanced", "given")]
        return "_".join([self.data, self.noise, f"e{self.epochs}", f"s{self.seed}", *rest])

    @property
    def base(self) -> Cell:
        """The training of a replay: the one watched with its hold-out as given."""
        return replace(self, holdout="given")

    @property
    def seconds(self) -> int:
        """CPU seconds that recording it takes, about."""
        return SECONDS[self.data, self.epochs]


# CPU seconds of one recording, with looks and audit, on one core
SECONDS: Mapping[tuple[str, int], int] = {
    ("digits", 12): 2,
    ("digits", 40): 4,
    ("fashion", 2): 5,
    ("fashion", 6): 10,
    ("fashion", 12): 18,
    ("cifar10", 4): 25,
    ("cifar10", 10): 48,
    ("banking77", 3): 4,
    ("banking77", 10): 6,
}


@dataclass(frozen=True, slots=True)
class Group:
    """Trainings watched with their hold-out as given; some of them watched again with another; all replays."""

    base: tuple[Cell, ...]
    watched: tuple[Cell, ...]
    hundred: tuple[Cell, ...]  # bases that are also replayed with a hold-out of 100

    @property
    def trainings(self) -> tuple[Cell, ...]:
        """All that is recorded."""
        return (*self.base, *self.watched)

    @property
    def replays(self) -> tuple[Cell, ...]:
        """All that is judged."""
        trusted = [replace(cell, holdout="trusted") for cell in self.base]
        return (*self.base, *trusted, *(replace(cell, holdout="hundred") for cell in self.hundred))


_DEVELOPMENT = (
    Cell("digits", "clean", 12, 0),
    Cell("digits", "sym-2", 12, 1),
    Cell("digits", "sym-5", 40, 0),
    Cell("digits", "pair-20", 12, 1),
    Cell("digits", "sym-5", 12, 0, "tail"),
    Cell("fashion", "clean", 2, 0),
    Cell("fashion", "clean", 6, 1),
    Cell("fashion", "sym-5", 2, 1),
    Cell("fashion", "sym-2", 6, 0),
    Cell("fashion", "pair-20", 12, 1),
    Cell("fashion", "pair-5", 6, 0, "tail"),
    Cell("cifar10", "clean", 10, 0),
    Cell("cifar10", "aggre", 4, 0),
    Cell("cifar10", "worst", 10, 1),
    Cell("banking77", "clean", 3, 1),
    Cell("banking77", "pair-5", 3, 0),
    Cell("banking77", "sym-5", 10, 1),
)
_REPORTED = (
    Cell("digits", "clean", 12, 2),
    Cell("digits", "clean", 40, 3),
    Cell("digits", "sym-2", 12, 4),
    Cell("digits", "sym-5", 40, 2),
    Cell("digits", "pair-5", 12, 3),
    Cell("digits", "pair-20", 40, 4),
    Cell("digits", "sym-5", 12, 3, "tail"),
    Cell("fashion", "clean", 2, 3),
    Cell("fashion", "clean", 6, 2),
    Cell("fashion", "sym-2", 6, 3),
    Cell("fashion", "sym-5", 2, 4),
    Cell("fashion", "sym-5", 12, 2),
    Cell("fashion", "pair-5", 2, 2),
    Cell("fashion", "pair-20", 6, 4),
    Cell("fashion", "sym-5", 6, 4, "tail"),
    Cell("cifar10", "clean", 4, 2),
    Cell("cifar10", "sym-5", 10, 3),
    Cell("cifar10", "pair-20", 4, 4),
    Cell("cifar10", "aggre", 4, 3),
    Cell("cifar10", "aggre", 10, 2),
    Cell("cifar10", "worst", 10, 4),
    Cell("banking77", "clean", 10, 2),
    Cell("banking77", "sym-2", 3, 4),
    Cell("banking77", "sym-5", 10, 3),
    Cell("banking77", "pair-5", 3, 2),
    Cell("banking77", "pair-20", 10, 4),
)

GROUPS: Mapping[str, Group] = {
    "development": Group(
        _DEVELOPMENT,
        watched=(
            Cell("digits", "sym-2", 12, 1, holdout="trusted"),
            Cell("fashion", "sym-5", 2, 1, holdout="trusted"),
            Cell("fashion", "sym-2", 6, 0, holdout="hundred"),
        ),
        hundred=(
            Cell("digits", "clean", 12, 0),
            Cell("digits", "pair-20", 12, 1),
            Cell("fashion", "clean", 6, 1),
            Cell("fashion", "sym-2", 6, 0),
            Cell("cifar10", "aggre", 4, 0),
            Cell("banking77", "sym-5", 10, 1),
        ),
    ),
    "reported": Group(
        _REPORTED,
        watched=(
            Cell("digits", "pair-5", 12, 3, holdout="trusted"),
            Cell("fashion", "pair-20", 6, 4, holdout="trusted"),
            Cell("banking77", "pair-5", 3, 2, holdout="trusted"),
            Cell("fashion", "sym-2", 6, 3, holdout="hundred"),
        ),
        hundred=(
            Cell("digits", "clean", 12, 2),
            Cell("digits", "sym-2", 12, 4),
            Cell("digits", "pair-20", 40, 4),
            Cell("fashion", "clean", 6, 2),
            Cell("fashion", "sym-2", 6, 3),
            Cell("fashion", "sym-5", 12, 2),
            Cell("fashion", "pair-20", 6, 4),
            Cell("cifar10", "clean", 4, 2),
            Cell("cifar10", "sym-5", 10, 3),
            Cell("cifar10", "aggre", 4, 3),
            Cell("banking77", "clean", 10, 2),
            Cell("banking77", "sym-5", 10, 3),
        ),
    ),
}
