"""What any engine has seen of examples: labels, and what models predict of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError
from sgoif.judging.predictions import TopPredictions, read_columns
from sgoif.types import Floats, Ints

__all__ = ["Heldout", "Observations", "unseen_observations"]

_PREDICTED = "log_p"  # the columns of predictions begin with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Heldout:
    """Rows that a model was not trained on, as it predicts them at the moment of the others' predictions."""

    labels: Ints  # [m]
    predictions: TopPredictions
    trusted: bool = False  # whether people have verified the labels
    # predictions out of fold by a head that was fitted to these rows: then the others' view is by that head, too
    probe: TopPredictions | None = None

    def take(self, rows: Any) -> Heldout:
        """Some of them."""
        return replace(self, labels=self.labels[rows], predictions=self.predictions.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Examples to be judged.

    Args:
        ids: by whose hashes they are sampled, ``[N]``.
        labels: given classes, ``[N]``; -1 for none.
        views: predictions of each, by name. Without held-out rows they were made by models that have not seen its
            label, and are pooled; with held-out rows by one model that was trained on the labels, at one moment.
        heldout: rows that this model was not trained on.
        over_visits: its mean predictions while it was trained, where they are known.
        num_visits: over how many that is, ``[N]``.
        mean_loss: the plain mean of its cross-entropy over the visits of a training, ``[N]``, where it is known.
    """

    ids: NDArray[Any]
    labels: Ints
    views: Mapping[str, TopPredictions]
    heldout: Heldout | None = None
    over_visits: TopPredictions | None = None
    num_visits: Ints | None = None
    mean_loss: Floats | None = None

    def __post_init__(self) -> None:
        if not self.views:
            raise SgoifError("observations need predictions: a column `log_p`, or several that begin with `log_p_`.")
        if self.heldout is not None and len(self.views) > 1:
            raise SgoifError(f"one model has one view beside its held-out rows, got {', '.join(self.views)}.")
        for name, view in self.views.items():
            if len(view) != len(self.labels):
                raise SgoifError(f"{name!r} predicts {len(view):,} examples, where there are {len(self.labels):,}.")
        if self.labels.size and int(self.labels.max()) >= self.num_classes:
            raise SgoifError(
                f"label {int(self.labels.max())} is no class: predictions are of {self.num_classes} classes, 0 to "
                f"{self.num_classes - 1}."
            )

    @property
    def num_classes(self) -> int:
        """``C``."""
        return self.final.num_classes

    @property
    def final(self) -> TopPredictions:
        """The first view."""
        return next(iter(self.views.values()))

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def from_table(cls, table: Any) -> Observations:
        """Read a table, as Arrow and pandas have it, or a mapping of columns.

        Its columns are ``id`` and ``label``; ``log_p``, or one or more that begin with ``log_p_``: lists of one log
        probability per class; and for a model that was trained on the labels ``is_held_out``, true for the rows that it
        was not trained on, and ``mean_loss``, where it is known.
        """
        columns = _columns(table)
        for name in ("id", "label"):
            if name not in columns:
                raise SgoifError(f"observations need a column {name!r}; this table has {', '.join(map(str, columns))}.")
        ids, labels = (np.asarray(columns[name]) for name in ("id", "label"))
        if labels.dtype.kind not in "iu":
            raise SgoifError(f"labels are whole numbers of classes, got {labels.dtype}; number their names first.")
        names = [name for name in columns if str(name).startswith(_PREDICTED)]
        views = {str(name): read_columns(columns, name) for name in names}
        labels = labels.astype(np.int64)
        if "is_held_out" not in columns:
            return cls(ids=ids, labels=labels, views=views)
        held = np.asarray(columns["is_held_out"], dtype=bool)
        first = next(iter(views.values()))
        loss = np.asarray(columns["mean_loss"], dtype=np.float64)[~held] if "mean_loss" in columns else None
        return cls(
            ids=ids[~held],
            labels=labels[~held],
            views={name: view.take(~held) for name, view in views.items()},
            heldout=Heldout(labels=labels[held], predictions=first.take(held)),
            mean_loss=loss,
        )


def unseen_observations(held: Heldout) -> Observations:
    """Held-out rows as examples: their predictions have not seen their labels."""
    return Observations(ids=np.arange(len(held.labels)), labels=held.labels, views={"final": held.predictions})


def _columns(table: Any) -> dict[Any, Any]:
    if hasattr(table, "to_pydict"):  # Arrow
        return {name: table[name].to_numpy() for name in table.column_names}
    if hasattr(table, "to_dict") and hasattr(table, "columns"):  # pandas
        return {name: table[name].to_numpy() for name in table.columns}
    if isinstance(table, Mapping):
        return dict(table)
    raise SgoifError(f"observations come as Observations, an Arrow table, a DataFrame or a mapping, got {type(table)}.")
