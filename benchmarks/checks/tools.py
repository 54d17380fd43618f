"""The two tools on one draw: ours, and cleanlab's Datalab, on the same features and out-of-fold probabilities.

Both get probabilities of a linear discriminant in five folds. Ours makes ``p_mislabeled`` of them as a scan of pictures
does, and compares pictures, or features of texts, by sketches.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.checks.plant import Draw
from sgoif.checks import CheckedData, DataIssue, data, find_data_issues
from sgoif.evidence import EMBEDDINGS_NEARLY_SAME, PICTURES_NEARLY_SAME, SKETCH_COLUMNS, picture_sketch, sign_sketch
from sgoif.findings import find_duplicates
from sgoif.judging.fitting import fit_noise
from sgoif.judging.heads import PredictedHead
from sgoif.judging.judgement import judge_fitted
from sgoif.pictures.statistics import measure_pictures
from sgoif.tables import MemoryTables

__all__ = ["ask_datalab", "ask_ours", "check", "predict", "squares"]

Found = dict[str, NDArray[np.int64] | bool | None]  # rows by kind, or whether the set has it; None: cannot tell

_OURS = {  # kinds of issues that are of the whole set
    *("class_imbalance", "label_order", "order_within_classes", "underperforming_group", "spurious_correlation"),
}
_THEIRS = {
    "label": "label_errors",
    "near_duplicate": "exact_duplicates",
    "outlier": "outliers",
    "dark": "dark_pictures",
    "light": "bright_pictures",
    "blurry": "blurry_pictures",
    "low_information": "low_information",
}
_SIDE = 32


def predict(draw: Draw, seed: int) -> NDArray[np.float64]:
    """Probabilities out of fold, ``[N, C]``; those of rows that are to fail are given to another class."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.model_selection import KFold

    found = np.full((len(draw.labels), draw.num_classes), 1e-6)
    for train, test in KFold(5, shuffle=True, random_state=seed).split(draw.features):
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2).fit(draw.features[train], draw.labels[train])
        found[np.ix_(test, model.classes_)] += model.predict_proba(draw.features[test])
    if draw.failing is not None:
        found[draw.failing] = np.roll(found[draw.failing], 1, axis=1)
    return found / found.sum(1, keepdims=True)


def ask_ours(draw: Draw, p: NDArray[np.float64]) -> Found:
    """All rows that our table of issues finds, by kind."""
    named, data.MOST_NAMED = data.MOST_NAMED, len(draw.labels)  # the table names 20
    try:
        issues = check(draw, p)
    finally:
        data.MOST_NAMED = named
    return {issue.kind: _read(issue) for issue in issues}


def _read(issue: DataIssue) -> NDArray[np.int64] | bool | None:
    if issue.count is None:
        return None
    return issue.is_found if issue.kind in _OURS else np.array([int(value) for value in issue.ids], np.int64)


def check(draw: Draw, p: NDArray[np.float64], *, judges_labels: bool = True) -> list[DataIssue]:
    """Our table of issues."""
    ids, log_p, wrong = np.arange(len(draw.labels)), np.log(p).astype(np.float32), None
    if judges_labels:
        head = PredictedHead(torch.from_numpy(log_p))
        wrong = judge_fitted(fit_noise([head], draw.labels, draw.num_classes)).p
    pictures = squares(draw.pictures) if draw.pictures else None
    words = sign_sketch(draw.features) if pictures is None else picture_sketch(pictures)
    table = {"id": ids, "given_label": draw.labels, **{name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)}}
    bits = EMBEDDINGS_NEARLY_SAME if pictures is None else PICTURES_NEARLY_SAME
    sizes = np.array([picture.shape[1::-1] for picture in draw.pictures]).reshape(-1, 2)
    return find_data_issues(
        CheckedData(
            ids,
            draw.labels,
            [str(c) for c in range(draw.num_classes)],
            features=draw.features,
            log_p=log_p,
            p_mislabeled=wrong,
            duplicates=find_duplicates(MemoryTables({"examples": table}).sql, max_bits=bits, has_holdout=False),
            pictures=None if pictures is None else measure_pictures(pictures, sizes),
        )
    )


def squares(pictures: tuple[NDArray[np.uint8], ...]) -> NDArray[np.uint8]:
    """Pictures scaled to squares, as a scan reads them."""
    from PIL import Image

    found = np.empty((len(pictures), _SIDE, _SIDE, 3), np.uint8)
    for place, picture in enumerate(pictures):
        if picture.shape[:2] == (_SIDE, _SIDE):
            found[place] = picture
        else:
            found[place] = np.asarray(Image.fromarray(np.ascontiguousarray(picture)).resize((_SIDE, _SIDE)))
    return found


def ask_datalab(draw: Draw, p: NDArray[np.float64]) -> Found:
    """All rows that Datalab flags, by our kinds; its defaults, and every check that it has for such data."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from cleanlab import Datalab
    from PIL import Image

    # Datalab counts classes from the labels: one that has no example would be an error
    present, labels = np.unique(draw.labels, return_inverse=True)
    known = p[:, present] / p[:, present].sum(1, keepdims=True)
    content: dict[str, Any] = {"label": labels.reshape(-1)}
    options: dict[str, Any] = {}
    if draw.pictures:
        import datasets

        images = [Image.fromarray(np.ascontiguousarray(picture)) for picture in draw.pictures]
        kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        content = datasets.Dataset.from_dict({"image": images, "label": content["label"].tolist()}, features=kinds)
        options["image_key"] = "image"
    lab = Datalab(content, label_name="label", verbosity=0, **options)
    lab.find_issues(pred_probs=known, features=draw.features)
    return _read_datalab(lab)


def _read_datalab(lab: Any) -> Found:
    flags, found = lab.get_issues(), Found()
    for theirs, ours in _THEIRS.items():
        name = f"is_{theirs}_issue"
        found[ours] = np.flatnonzero(flags[name].to_numpy()).astype(np.int64) if name in flags else None
    for theirs, ours in (("class_imbalance", "class_imbalance"), ("underperforming_group", "underperforming_group")):
        name = f"is_{theirs}_issue"
        found[ours] = bool(flags[name].any()) if name in flags else None
    found["label_order"] = found["order_within_classes"] = _is_flagged(lab, "non_iid")
    found["spurious_correlation"] = _is_flagged(lab, "spurious_correlations")
    return found


def _is_flagged(lab: Any, kind: str) -> bool | None:
    summary = lab.get_issue_summary()
    mine = summary[summary["issue_type"] == kind]
    if kind == "spurious_correlations":
        info = lab.get_info("spurious_correlations") if "spurious_correlations" in lab.info else None
        if not info:
            return None
        scores = info["correlations_df"]["score"]
        return bool((scores < info["threshold"]).any())
    return bool(mine["num_issues"].iloc[0] > 0) if len(mine) else None
