"""Sequences with similar prompts, by the words that they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["find_similar"]

_AT_ONCE = 64  # prompts that are compared with all others together: 10 MB for 20,000 others
_LEAST = 0.05  # cosine below which two prompts share no more than a common word


def find_similar(prompts: Sequence[str], pool: Sequence[str], count: int) -> list[list[tuple[int, float]]]:
    """For each prompt, the positions in the pool of those most alike and their cosines, best first.

    Words are weighted by TF-IDF of the pool, so that rare ones count more. Prompts that share almost no word with
    others have fewer neighbours, or none.

    >>> find_similar(["my card is lost"], ["hello there", "is my card lost?", "a lost key"], 1)
    [[(1, 1.0)]]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b", dtype=np.float32)
    try:
        others = weights.fit_transform(pool).T.tocsr()
    except ValueError:  # not one word in all of them
        return [[] for _ in prompts]
    found: list[list[tuple[int, float]]] = []
    for start in range(0, len(prompts), _AT_ONCE):
        near = (weights.transform(prompts[start : start + _AT_ONCE]) @ others).toarray()
        best = np.argsort(-near, axis=1, kind="stable")[:, :count]
        for row, places in zip(near, best.tolist()):
            found.append([(place, round(float(row[place]), 3)) for place in places if row[place] >= _LEAST])
    return found
