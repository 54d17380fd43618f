"""The cells: which data, which noise, which seeds. Named before anything was run on them.

Development cells use other pictures (or other seeds of texts and made tables) than reported ones, see
:mod:`benchmarks.weakness.sets`; the tables of scikit-learn are reported only. The thresholds of the rule may be chosen
on development cells alone.

``cifar100-20`` is no clean set, whatever its noise: of the 990 labels of seed 1 people voted 153 wrong. It counts in no
total.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One set with one kind of noise.

    Args:
        data: a set of :mod:`benchmarks.weakness.sets`.
        noise: ``clean``, ``sym-R``, ``pair-R``, ``human-R``, R in percent of all labels; ``human``: as people labelled.
        size: number of examples; 0 takes all that the set has.
        seeds: each is another draw.
    """

    data: str
    noise: str
    size: int = 0
    seeds: tuple[int, ...] = (0,)


REPORTED: tuple[Cell, ...] = (
    Cell("wine", "clean"),
    Cell("wine", "pair-20", seeds=(0, 1, 2)),
    Cell("breast_cancer", "clean", seeds=(0, 1)),
    Cell("breast_cancer", "sym-5", seeds=(0, 1, 2, 3)),
    Cell("moons", "clean"),
    Cell("moons", "sym-10"),
    Cell("drawn-2", "clean", seeds=(0, 2, 3)),
    Cell("drawn-5", "clean"),
    Cell("friedman", "clean"),
    Cell("digits", "clean"),
    Cell("digits", "sym-2"),
    Cell("digits", "sym-5", seeds=(1,)),
    Cell("digits", "pair-3"),
    Cell("digits", "pair-20"),
    Cell("made-linear", "sym-3"),
    Cell("made-bent", "clean"),
    Cell("made-bent", "sym-3"),
    Cell("made-bent", "pair-20"),
    Cell("fashion-pixels", "clean", 500, seeds=(1, 2, 3, 4, 5)),
    Cell("fashion-pixels", "pair-10", 500, seeds=(1, 2)),
    Cell("fashion-pixels", "clean", 3_000, seeds=(1,)),
    Cell("fashion-pixels", "pair-5", 3_000, seeds=(1,)),
    Cell("mnist-pixels", "sym-5", 1_000),
    Cell("cifar10-pca", "clean", 2_000, seeds=(1, 2)),
    Cell("cifar10-convolutions", "clean", 1_500, seeds=(1, 3)),
    Cell("cifar10-convolutions", "clean", 3_000, seeds=(2,)),
    Cell("cifar10-convolutions", "sym-20", 3_000, seeds=(1,)),
    Cell("cifar10-columns", "clean"),
    Cell("cifar10-columns", "sym-10"),
    Cell("cifar10", "sym-5", 500, seeds=(1,)),
    Cell("cifar10", "pair-3", 1_000, seeds=(1, 2, 3)),
    Cell("cifar10", "clean", 3_000, seeds=(1,)),
    Cell("cifar10", "sym-2", 3_000, seeds=(1,)),
    Cell("cifar10", "sym-40", 3_000, seeds=(1,)),
    Cell("cifar10", "pair-5", 3_000, seeds=(1,)),
    Cell("cifar10", "pair-20", 3_000, seeds=(1,)),
    Cell("cifar10", "human-5", 3_000, seeds=(1,)),
    Cell("cifar10", "human", 3_000, seeds=(1,)),
    Cell("cifar10-test", "clean", 8_000),
    Cell("cifar10-test", "sym-1", 8_000),
    Cell("cifar100-20-unsuspected", "clean", seeds=(0, 1)),
    Cell("cifar100-20-unsuspected", "pair-5"),
    Cell("banking-20x60", "pair-3", seeds=(0, 1)),
    Cell("banking-77x15", "clean", seeds=(0, 1, 2, 3, 4)),
    Cell("banking-77x15", "pair-20"),
    Cell("clinc-30x50", "pair-5"),
    Cell("clinc-100x20", "clean"),
)

DEVELOPMENT: tuple[Cell, ...] = (
    Cell("moons", "clean"),
    Cell("moons", "sym-10"),
    Cell("drawn-2", "clean", seeds=(0, 1)),
    Cell("drawn-2", "sym-10"),
    Cell("drawn-2-rare", "clean"),
    Cell("drawn-5", "clean"),
    Cell("friedman", "clean"),
    Cell("made-linear", "sym-3"),
    Cell("made-bent", "clean"),
    Cell("made-bent", "pair-5"),
    Cell("fashion-pixels", "clean", 500, seeds=(1, 2)),
    Cell("fashion-pixels", "pair-10", 500, seeds=(1,)),
    Cell("cifar10-pca", "clean", 2_000, seeds=(1,)),
    Cell("cifar10-convolutions", "clean", 1_500, seeds=(1, 2)),
    Cell("cifar10-convolutions", "sym-10", 1_500, seeds=(1,)),
    Cell("cifar10-convolutions", "clean", 3_000, seeds=(1,)),
    Cell("cifar10-convolutions", "pair-20", 3_000, seeds=(1,)),
    Cell("cifar10-columns", "clean"),
    Cell("cifar10-two", "clean"),
    Cell("cifar10-two", "sym-5"),
    Cell("cifar10", "clean", 500, seeds=(1,)),
    Cell("cifar10", "sym-5", 500, seeds=(1,)),
    Cell("cifar10", "pair-3", 1_000, seeds=(1,)),
    Cell("cifar10", "clean", 3_000, seeds=(1,)),
    Cell("cifar10", "sym-2", 3_000, seeds=(1,)),
    Cell("cifar10", "sym-5", 3_000, seeds=(1,)),
    Cell("cifar10", "sym-20", 3_000, seeds=(1,)),
    Cell("cifar10", "pair-5", 3_000, seeds=(1,)),
    Cell("cifar10", "pair-20", 3_000, seeds=(1,)),
    Cell("cifar10", "human-5", 3_000, seeds=(1,)),
    Cell("cifar10", "human", 3_000, seeds=(1,)),
    Cell("cifar100-20", "clean", seeds=(1,)),
    Cell("cifar100-20", "sym-10", seeds=(1,)),
    Cell("cifar100-20", "pair-10", seeds=(1,)),
    Cell("banking-20x60", "clean"),
    Cell("banking-20x60", "pair-3"),
    Cell("banking-77x15", "clean"),
    Cell("banking-77x15", "sym-5"),
)
