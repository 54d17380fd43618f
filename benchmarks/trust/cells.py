"""The grid: which data, which noise, which rate. Chosen, not crossed; at most 60 reported cells.

Development cells use other examples (or, for made tables, other tables) than reported ones: the first 20,000 train
images of CIFAR-10 and Fashion-MNIST, the first 15,000 of CIFAR-100, Banking77, and made tables of other seeds. The
small tables of scikit-learn are reported only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the grid.

    Args:
        data: a set of :mod:`benchmarks.trust.sets`.
        noise: ``clean``, ``sym-R``, ``pair-R``, ``human-R``, ``idn-R``, R in percent of all labels.
        size: number of examples; 0 takes all that the set has.
        shape: ``balanced``; ``tail`` thins the classes to 1:50; ``two`` keeps two classes.
        expects: ``competent``, or ``weak`` where the features cannot tell right labels from wrong ones.
    """

    data: str = "digits"
    noise: str = "clean"
    size: int = 5_000
    shape: str = "balanced"
    expects: str = "competent"

    @property
    def name(self) -> str:
        """Short name for tables."""
        parts = [self.data, self.noise]
        parts += [f"n{self.size}"] if self.size not in (0, 5_000) else []
        parts += [self.shape] if self.shape != "balanced" else []
        return "/".join(parts)

    @property
    def rate(self) -> float:
        """Share of wrong labels that the noise is meant to have."""
        return 0.0 if self.noise == "clean" else float(self.noise.partition("-")[2]) / 100

    @property
    def num_examples(self) -> int:
        """Number of examples, about, where the set is taken whole."""
        return self.size or {"clinc150": 18_000, "banking77": 10_000}.get(self.data, 4_000)

    @property
    def cost(self) -> int:
        """What orders the cells, cheapest first: examples times classes, more for wide features than for tables."""
        classes = {"cifar100": 100, "clinc150": 150, "banking77": 77}.get(self.data.partition("-")[0], 10)
        is_table = self.data in SMALL or self.data.startswith("made")
        return self.num_examples * (1 if is_table else 10 * classes)


def _cells(
    data: str, *noises: str, size: int = 5_000, shape: str = "balanced", expects: str = "competent"
) -> list[Cell]:
    return [Cell(data, noise, size, shape, expects) for noise in noises]


REPORTED: tuple[Cell, ...] = (
    *_cells("cifar10", "clean", "sym-0.5", "sym-1", "sym-2", "sym-5", "sym-10", "sym-20", "sym-40"),
    *_cells("cifar10", "pair-3", "pair-10", "pair-20", "human-2", "human-5", "human-40", "idn-5", "idn-20"),
    *_cells("cifar10", "pair-10", shape="tail"),
    *_cells("cifar10", "sym-2", "pair-20", size=20_000),
    *_cells("cifar10", "sym-5", "pair-10", size=500),
    *_cells("cifar10", "sym-3", "sym-10", size=2_000, shape="two"),
    *_cells("fashion", "clean", "sym-1", "sym-2", "pair-3", "pair-20", "idn-20"),
    *_cells("fashion", "pair-10", shape="tail"),
    *_cells("cifar100", "clean", "sym-2", "sym-20", "pair-5", "pair-20", "human-2", "human-40", size=20_000),
    *_cells("cifar100", "clean", size=5_000, expects="weak"),
    *_cells("cifar100-pixels", "sym-5", size=5_000, expects="weak"),
    *_cells("cifar10-shuffled", "sym-5", expects="weak"),
    *_cells("clinc150", "clean", "sym-2", "sym-20", "pair-5", size=0),
    *_cells("digits", "clean", "sym-2", "sym-5", "pair-3", "pair-20", size=0),
    *_cells("wine", "clean", "pair-20", size=0),
    *_cells("breast_cancer", "clean", "sym-5", size=0),
    *_cells("made-linear", "clean", "sym-2", size=0),
    *_cells("made-bent", "clean", "sym-2", "pair-3", "pair-20", size=0),
)

DEVELOPMENT: tuple[Cell, ...] = (
    *_cells("cifar10-dev", "clean", "sym-2", "sym-10", "pair-3", "pair-20", "human-3", "idn-10"),
    *_cells("cifar10-dev", "pair-15", shape="tail"),
    *_cells("cifar10-dev", "sym-8", size=500),
    *_cells("cifar10-dev", "sym-5", size=2_000, shape="two"),
    *_cells("fashion-dev", "clean", "sym-1", "pair-5"),
    *_cells("cifar100-dev", "sym-3", "pair-10", size=12_000),
    *_cells("cifar100-dev", "clean", size=5_000, expects="weak"),
    *_cells("banking77", "clean", "sym-3", "pair-10", size=0),
    *_cells("made-linear-dev", "sym-3", size=0),
    *_cells("made-bent-dev", "clean", "sym-3", "pair-5", size=0),
)

# Tables of scikit-learn: seconds each.
SMALL = ("digits", "wine", "breast_cancer")
