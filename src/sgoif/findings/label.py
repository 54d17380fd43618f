"""Which labels are wrong: one row per example, most suspicious first, in the shape curators know.

``label_score`` is low for bad labels, as in cleanlab's Datalab; ``p_mislabeled``, ``harm`` and ``worst`` are high. The
last two, with ``confidence``, are those of a run whose model was watched or audited.
Where an example has no probability, ``no_p_reason`` says why, and ``label_score`` is its margin over training. No label
of a run without any is called an issue.

``why`` is one sentence. Where rows have the columns of :func:`sgoif.findings.keys.with_neighbours`, it begins with the
labels of the nearest training examples, which a person can see for themselves; else with what the model saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgoif.findings.suspects import FLAGGED, UNLIKELY

__all__ = ["NEAR_COLUMNS", "class_name", "label_issues", "phrase", "phrase_kinds", "rank_by_suspicion"]

Columns = Mapping[str, NDArray[Any]]

_PROBABILITIES = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")  # always there, NaN where there is none
_MOST_VISITS = 10  # from so many visits on their share is told in tenths
_OF_INFLUENCE = ("harm", "worst", "confidence")
_OF_SUGGESTIONS = ("p_suggested", "p_suggested_2", "p_suggested_3")
NEAR_COLUMNS = ("near_suggested", "near_given", "num_near")  # nearest examples labelled so, labelled so, and in all


def rank_by_suspicion(examples: Columns) -> NDArray[np.int64]:
    """Order rows by ``p_mislabeled``, where nobody has one by ``label_score``, else by the margin, else by ``worst``.

    Rows that were not judged come last.
    """
    if _is_known(examples, "p_mislabeled"):
        key = examples["p_mislabeled"].astype(np.float64)
    elif (score := _score_without_p(examples)) is not None:
        key = -score
    else:
        key = examples["worst"].astype(np.float64)
    return np.argsort(-np.nan_to_num(key, nan=-np.inf), kind="stable")


def _score_without_p(rows: Columns) -> NDArray[np.float64] | None:
    """``label_score`` of rows without a probability: what a run has of it, or its margin over training in [0, 1]."""
    if _is_known(rows, "label_score"):
        return np.asarray(rows["label_score"], dtype=np.float64)
    if _is_known(rows, "margin"):
        return np.asarray(0.5 * (1 + np.tanh(0.5 * rows["margin"].astype(np.float64))))
    return None


def _is_known(rows: Columns, name: str) -> bool:
    return name in rows and bool(np.isfinite(rows[name].astype(np.float64)).any())


def label_issues(
    examples: Columns, class_names: Sequence[str] = (), *, top: int | None = None
) -> dict[str, NDArray[Any]]:
    """Make the table of labels, most suspicious first.

    Args:
        examples: the run's table of examples.
        class_names: for the phrases; numbers where there are none.
        top: how many rows; all of them by default.
    """
    order = rank_by_suspicion(examples)[:top]
    rows = {name: column[order] for name, column in examples.items()}
    nothing = np.full(len(order), np.nan)
    p = rows["p_mislabeled"].astype(np.float64) if "p_mislabeled" in rows else nothing
    score = _score_without_p(rows)
    table: dict[str, NDArray[Any]] = {
        "id": rows["id"],
        "is_label_issue": np.nan_to_num(p) >= FLAGGED,
        "label_score": 1 - p if score is None else np.where(np.isfinite(p), 1 - p, score),
        "given_label": rows["given_label"],
        "suggested_label": rows["suggested_label"],
        "suggested_label_2": rows["suggested_label_2"],
        "suggested_label_3": rows["suggested_label_3"],
    }
    table |= {name: rows.get(name, nothing) for name in _PROBABILITIES}
    table["no_p_reason"] = rows.get("no_p_reason", np.full(len(order), None, dtype=object))
    table |= {name: rows[name] for name in _OF_INFLUENCE if _is_known(rows, name)}
    table |= {name: rows[name] for name in ("n_visits", *NEAR_COLUMNS) if name in rows}
    table |= {name: rows[name] for name in _OF_SUGGESTIONS if _is_known(rows, name)}
    table["why"] = _phrases(rows, class_names)
    table["source"] = rows["source"] if "source" in rows else np.full(len(order), "train")
    return table


def class_name(label: int, names: Sequence[str]) -> str:
    """The class's name, or its number."""
    return names[label] if 0 <= label < len(names) else str(label)


def phrase_kinds(rows: Columns) -> NDArray[np.int64]:
    """What speaks against each label, ``[N, 5]``.

    In how many visits it looked like the suggestion, of how many (0 of 0 where that is not known); whether learning it
    does harm, whether the model doubts it (2: it is unsure), and whether it was judged.
    """
    share = rows["suggested_share"].astype(np.float64)
    of = np.where(np.isfinite(share), np.minimum(np.nan_to_num(rows["n_visits"]), _MOST_VISITS), 0).astype(np.int64)
    times = np.rint(of * np.nan_to_num(share)).astype(np.int64)
    times = np.where(share < 1, np.minimum(times, of - 1), times).clip(min=1)  # "every visit" only where it was
    harmful = (np.nan_to_num(rows["worst"]) > 0).astype(np.int64)
    p = rows["p_mislabeled"].astype(np.float64) if "p_mislabeled" in rows else np.full(len(of), np.nan)
    if "label_score" in rows:  # a scan whose heads know too little for probabilities
        p = np.where(np.isfinite(p), p, 1 - rows["label_score"].astype(np.float64))
    # by the scores; or, where there are none or they see nothing, by the probability
    is_doubted = (np.nan_to_num(rows["margin"]) < 0) | ((np.nan_to_num(p) >= FLAGGED) & (harmful == 0))
    is_scored, known = np.isfinite(rows["worst"]), np.isfinite(p)
    doubt = np.where(is_doubted, 1, np.where(~is_scored & (np.nan_to_num(p) >= UNLIKELY), 2, 0))
    judged = np.asarray(known | is_scored).astype(np.int64)
    return np.stack([times, of, harmful, doubt, judged], 1)


def _phrases(rows: Columns, names: Sequence[str]) -> NDArray[Any]:
    """One plain phrase per row. Rows that would read alike share the work: there are few kinds of them."""
    suggested, count = rows["suggested_label"], len(rows["suggested_label"])
    if "p_mislabeled" in rows:  # a label that is unlikely to be wrong needs no reason against it
        suggested = np.where(rows["p_mislabeled"].astype(np.float64) < UNLIKELY, -1, suggested)
    near = [rows.get(name, np.zeros(count, np.int64)) for name in NEAR_COLUMNS]
    is_held = rows["source"] == "holdout" if "source" in rows else np.zeros(count, bool)
    keys = np.column_stack([rows["given_label"], suggested, is_held, *near, phrase_kinds(rows)]).astype(np.int64)
    if not len(keys):
        return np.empty(0, dtype=object)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    said = np.empty(len(unique), dtype=object)
    said[:] = [
        phrase(given, suggested, kind, names, near=(first, own, of), is_held=bool(is_held))
        for given, suggested, is_held, first, own, of, *kind in unique.tolist()
    ]
    return said[inverse.reshape(-1)]


def phrase(
    given: int,
    suggested: int,
    kind: Sequence[int],
    names: Sequence[str],
    *,
    near: tuple[int, int, int] = (0, 0, 0),
    is_held: bool = False,
) -> str:
    """Say in plain words what speaks against a label.

    Args:
        given: the label.
        suggested: the class that it may be instead; -1 for none.
        kind: a row of :func:`phrase_kinds`.
        names: of the classes.
        near: nearest examples that have the suggested label, that have the given one, and all of them; 0 of 0 where
            they are not known.
        is_held: whether the model was not trained on this example.
    """
    times, of, harmful, doubt, judged = kind
    if not judged:
        return "not judged: it was never seen while the scores could be trusted"
    held, other = class_name(given, names), class_name(suggested, names)
    if suggested < 0 or suggested == given:
        return f"nothing speaks against {held}"
    if not (harmful or doubt):
        return f"nothing speaks against {held}; the next best is {other}"
    looks = f"looks like {other}"
    if near[2]:
        looks = _say_near(near, held, other)
    elif of > 1:
        looks += " in every visit" if times == of else f" in about {times} of {of} visits"
    hurts = f"learning it as {held} {'would hurt other' if is_held else 'hurts'} held-out {other}"
    verb = "is unsure of" if doubt > 1 else "does not believe"
    doubts = f"the model{', which has not seen it,' if is_held else ''} {verb} {held}"
    if harmful and doubt:
        return f"{looks}; {doubts}, and {hurts}"
    return f"{looks}; {hurts if harmful else doubts}"


def _say_near(near: tuple[int, int, int], held: str, other: str) -> str:
    """What the labels of the nearest examples say for the suggestion, and against it."""
    first, own, of = near
    if first == of:
        return (
            f"all of its {of} nearest examples are labelled {other}" if of > 1 else f"the nearest is labelled {other}"
        )
    if first:
        are = "is" if first == 1 else "are"
        against = f" and {own} {held}" if own else ""
        return f"{first} of its {of} nearest examples {are} labelled {other}{against}"
    if own:
        are = "is" if own == 1 else "are"
        return f"looks like {other}, but {own} of its {of} nearest examples {are} labelled {held}"
    return f"looks like {other}, but its nearest examples are labelled neither {other} nor {held}"
