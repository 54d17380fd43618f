"""Which training examples serve a bad prediction: those of the predicted class that stand where the queries stand.

A backdoor is learnt from examples that bear the target label and the trigger. A finished model has fitted them: their
residual is gone, and with it their influence by gradients. What the model sees in them is still there. So examples of
the target class are laid along the direction that best tells the queries from the class in front of the head,
``w = (Σ + λI)⁻¹ (q - μ)``: Fisher's discriminant. "Looks like the class" is subtracted with the class's mean ``μ``, and
directions in which the class varies anyhow count little.

Ten queries show the trigger, and also the ten things that they are pictures of. Examples that stand with them show it
on other things: they join the queries, and the line is drawn anew until nobody joins or leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.errors import SgoifError

__all__ = ["NUM_NEAREST", "SUSPECT_FROM", "Contrast", "Nearest", "poison_table"]

Floats = NDArray[np.floating[Any]]

SUSPECT_FROM = 0.5  # nearer to the queries than to the rest of the class
# λ over the mean eigenvalue of Σ. On a development set (Fashion-MNIST, 60 of 6,000 poisoned) 10 and 100 gave an AUPR of
# 1.00 from one, three or ten queries; 1 from three, and 0.1 at most 0.997.
RELATIVE_DAMPING = 10.0
LEAST_SHARED = 0.1  # of the way to the queries' mean; below it is noise
ROUNDS = 5  # of redrawing, at most
NUM_NEAREST = 6  # examples named for each query


@dataclass(frozen=True, slots=True)
class Contrast:
    """The line from the mean of a class to that of some queries, and how far along it an example stands.

    >>> contrast = Contrast.between(np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([[4.0, 0.0]]))
    >>> contrast.score(np.array([[0.0, 5.0], [3.0, 0.0], [9.0, 0.0]])).tolist()
    [0.0, 0.75, 1.0]
    """

    mean: NDArray[np.float64]  # of the class, [D]
    apart: NDArray[np.float64]  # from there to the queries, [D]
    direction: NDArray[np.float64]  # [D], of value 0 at the class's mean and 1 at the queries'

    @classmethod
    def between(cls, members: Floats, queries: Floats, *, damping: float = RELATIVE_DAMPING) -> Contrast:
        """Draw it from what the head sees of a class (or a sample of it), ``[n, D]``, and of the queries, ``[Q, D]``.

        Raises:
            SgoifError: The queries stand where the class stands, so that nothing tells them apart.
        """
        members, queries = np.asarray(members, np.float64), np.asarray(queries, np.float64)
        found = cls._fisher(members, queries, damping)
        near = np.zeros(len(members), bool)
        for _ in range(ROUNDS):
            before, near = near, found.score(members) >= SUSPECT_FROM
            if near.all() or (near == before).all():
                break
            redrawn = cls._fisher(members[~near], np.concatenate([queries, members[near]]), damping)
            if redrawn.score(queries).mean() < SUSPECT_FROM:
                break  # those who joined have led away from what was asked
            found = redrawn
        return found

    @classmethod
    def _fisher(cls, members: Floats, others: Floats, damping: float) -> Contrast:
        """Between two groups, with the covariance that they have within; a lone query adds nothing to it.

        The unit is how far each of the others stands along the line that the rest of them draw: where a query stands
        along its own line tells what it is a picture of, not what it shares with them. Those that share almost
        nothing are measured by their own line, which calls few others suspect.
        """
        mean, size = members.mean(0), members.shape[1]
        apart = others.mean(0) - mean
        within = [part - part.mean(0) for part in (members, others)]
        covariance = sum(part.T @ part for part in within) / (len(members) + len(others))
        damped = covariance + max(damping * float(np.trace(covariance)) / size, 1e-12) * np.eye(size)
        solved = np.linalg.solve(damped, np.column_stack([apart, within[1].T]))
        spread = float((within[1] * solved[:, 1:].T).sum())  # Σ_j, of what each has to itself
        count = len(others)
        own = float(apart @ solved[:, 0])
        shared = own - spread / (count * (count - 1)) if count > 1 else own
        if not own > 0:  # written so that NaN fails too
            raise SgoifError("the model sees no difference between the queries and the class that they are taken for.")
        return cls(mean, apart, solved[:, 0] / (shared if shared > LEAST_SHARED * own else own))

    def score(self, features: Floats) -> NDArray[np.float64]:
        """How far towards the queries each example stands, from 0 (mean of the class, or beyond) to 1."""
        return np.clip((np.asarray(features, np.float64) - self.mean) @ self.direction, 0.0, 1.0)

    def similarity(self, features: Floats) -> NDArray[np.float64]:
        """Cosine between where the example and where the queries stand, both seen from the mean of the class."""
        away = np.asarray(features, np.float64) - self.mean
        lengths = np.linalg.norm(away, axis=1) * np.linalg.norm(self.apart)
        return np.asarray(away @ self.apart / np.maximum(lengths, 1e-300), np.float64)


class Nearest:
    """For each query the examples of the class that look most like it, found while they pass batch by batch.

    By the cosine between the two, both seen from the mean of the class; memory is that of the queries' own lists.

    >>> nearest = Nearest(np.zeros(2), np.array([[1.0, 0.0], [0.0, 1.0]]), count=1)
    >>> nearest.add(np.array([[0.0, 5.0], [3.0, 1.0]]))
    >>> nearest.add(np.array([[2.0, 0.1]]))
    >>> nearest.of_examples(3)
    [[1], [], [0]]
    """

    def __init__(self, mean: Floats, queries: Floats, *, count: int = NUM_NEAREST) -> None:
        self._mean, self._count, self._passed = mean, count, 0
        self._queries = _directions(queries - mean)
        self._rows = np.zeros((len(queries), 0), np.int64)
        self._cosines = np.zeros((len(queries), 0))

    def add(self, features: Floats) -> None:
        """Take in the next examples, ``[n, D]``."""
        cosines = self._queries @ _directions(features - self._mean).T
        rows = np.broadcast_to(np.arange(self._passed, self._passed + len(features)), cosines.shape)
        rows, cosines = np.hstack([self._rows, rows]), np.hstack([self._cosines, cosines])
        best = np.argsort(-cosines, axis=1, kind="stable")[:, : self._count]
        self._rows, self._cosines = np.take_along_axis(rows, best, 1), np.take_along_axis(cosines, best, 1)
        self._passed += len(features)

    def of_examples(self, count: int) -> list[list[int]]:
        """For each of the examples that passed, the numbers of the queries that it is among the nearest of."""
        found: list[list[int]] = [[] for _ in range(count)]
        for query, rows in enumerate(self._rows.tolist()):
            for row in rows:
                found[row].append(query)
        return found


def _directions(rows: Floats) -> NDArray[np.float64]:
    wide = np.asarray(rows, np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-300), np.float64)


def poison_table(columns: Mapping[str, NDArray[Any]], *, top: int | None = None) -> dict[str, NDArray[Any]]:
    """Order examples by score, most suspicious first; equal scores by similarity.

    Args:
        columns: id, given_label, score, effect and similarity of the examples of the target class.
        top: how many rows; all by default.

    Returns:
        The columns with ``is_suspect``: whether an example stands nearer to the queries than to its class.
    """
    order = np.lexsort((-columns["similarity"], -columns["score"]))[:top]
    rows = {name: column[order] for name, column in columns.items()}
    return {"id": rows.pop("id"), "score": rows["score"], "is_suspect": rows.pop("score") >= SUSPECT_FROM, **rows}
