"""The hold-out: examples that are never trained on, read by position, a fixed number at a time, in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sgoif.errors import SgoifError
from sgoif.inputs.examples import Examples
from sgoif.tasks.multilabel import bits_of

__all__ = ["MIN_HELD_OUT", "HoldOut", "MultilabelHoldOut", "why_not_judged"]

MIN_HELD_OUT = 5  # examples of a class, below which nothing is said of its labels


class _Rounds:
    """Examples visited in rounds.

    An example that cannot be read is an error once, and left out from then on.
    """

    def __init__(self, source: Any, device: torch.device | str, role: str) -> None:
        self.device = torch.device(device)
        self.examples = source if isinstance(source, Examples) else Examples(source, role=role, device=device)
        self.ids: Sequence[Any] = self.examples.ids
        self._order = torch.empty(0, dtype=torch.long)
        self.position = 0  # in that order

    def __len__(self) -> int:
        return len(self.ids)

    def next_positions(self, count: int) -> Tensor:
        """Positions of the next ``count`` examples (fewer when the hold-out is smaller), wrapping around."""
        size = len(self._order)
        count = min(count, size)
        picked = self._order[(self.position + torch.arange(count)) % size]
        self.position = (self.position + count) % size
        return picked

    def inputs(self, positions: Tensor) -> Any:
        """The inputs at these positions, collated and on the device."""
        return self.examples.inputs(positions, self._leave_out)

    def _leave_out(self, position: int) -> None:
        left = self._order[self._order != position]
        self._order = left if len(left) else self._order


class HoldOut(_Rounds):
    """Held-out examples with their classes, visited in rounds so that every class comes up equally often.

    Args:
        source: whatever :class:`sgoif.inputs.Examples` reads, or such an object.
        num_classes: how many classes there are; found from the labels where None.
        seed: of the order inside each class.
        device: where the labels live and inputs are moved to.
        class_names: which number the labels where they are strings.
        labels: class numbers ``[N]`` that stand in for the source's own.
        role: what the examples are, for messages.

    A dataset's labels are read once, here; its inputs only when their turn comes.
    """

    def __init__(
        self,
        source: Any,
        *,
        num_classes: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        class_names: Sequence[str] | None = None,
        labels: Tensor | None = None,
        role: str = "anchors=",
    ) -> None:
        super().__init__(source, device, role)
        given = self.examples.classes(class_names) if labels is None else labels.cpu().long()
        found, lowest = int(given.max()) + 1, int(given.min())
        self.num_classes = found if num_classes is None else num_classes
        if found > self.num_classes or lowest < 0:
            raise SgoifError(
                f"labels of {self.examples.role} must lie in 0..{self.num_classes - 1} for {self.num_classes} classes, "
                f"but they range from {lowest} to {found - 1}; number the classes from 0 as the model's outputs are, "
                "and leave out examples without a label."
            )
        self.labels = given.to(self.device)
        self.counts = torch.bincount(given, minlength=self.num_classes)
        self._order = _interleave(given, self.num_classes, torch.Generator().manual_seed(seed))

    @property
    def judged_classes(self) -> Tensor:
        """Which classes have enough examples here, ``[C]``; labels of the others are not judged."""
        return self.counts >= MIN_HELD_OUT

    @property
    def is_anchor(self) -> Tensor:
        """Which examples make anchors, ``[N]``: those of judged classes; all where there are not two such classes."""
        judged = self.judged_classes
        return (judged if judged.sum() >= 2 else torch.ones_like(judged)).to(self.device)[self.labels]


class MultilabelHoldOut(_Rounds):
    """Held-out examples with a yes, a no or nothing per tag.

    Args:
        source: whatever :class:`sgoif.inputs.Examples` reads, with targets ``[C]`` of an example that are 1, 0, or NaN
            or negative where nobody knows.
        seed: of the order.
        device: where the targets live and inputs are moved to.
        role: what the examples are, for messages.
    """

    def __init__(
        self, source: Any, *, seed: int = 0, device: torch.device | str = "cpu", role: str = "anchors="
    ) -> None:
        super().__init__(source, device, role)
        targets = self.examples.tags()
        if targets.dim() != 2 or not len(targets):
            raise SgoifError(
                f"a multi-label hold-out needs targets [examples, tags], at least one example, got "
                f"{tuple(targets.shape)}; for one class per example leave out task=."
            )
        self.targets = targets.to(self.device)
        self._order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))

    @property
    def num_tags(self) -> int:
        return self.targets.shape[1]

    @property
    def counts(self) -> Tensor:
        """How many examples are known to lack and to have each tag, ``[2, C]``."""
        present, absent = bits_of(self.targets)
        return torch.stack([absent.sum(0), present.sum(0)])


def why_not_judged(name: str, count: int) -> str:
    """Say why labels of a class with ``count`` held-out examples are not judged.

    >>> why_not_judged("nine", 1)
    'class nine has 1 held-out example, too few to judge'
    """
    if not count:
        return f"class {name} has no held-out example"
    return f"class {name} has {count} held-out example{'s' if count > 1 else ''}, too few to judge"


def _interleave(labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
    """Order the positions so that classes alternate for as long as each has examples left."""
    rank = torch.empty(len(labels), dtype=torch.float64)
    counts = torch.bincount(labels, minlength=num_classes)
    for members in labels.argsort(stable=True).split(counts.tolist()):
        shuffled = members[torch.randperm(len(members), generator=generator)]
        # spread each class evenly over the whole order, so that a rare class does not come up in the first draw only
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        rank[shuffled] = (torch.arange(len(members), dtype=torch.float64) + offset) / max(len(members), 1)
    return rank.argsort()
