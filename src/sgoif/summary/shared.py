"""What summaries of all kinds of runs say: what people checked, why there are no probabilities, how good a model is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sgoif.findings.suspects import Sql, columns_of
from sgoif.types import Floats
from sgoif.wording import count, percent, percents

__all__ = [
    "competence_line",
    "count_examples",
    "describe_checked",
    "kind_of_holdout",
    "read_transition",
    "why_no_probabilities",
]


def describe_checked(checked: Mapping[str, Any], what: str = "label") -> list[str]:
    """Say what checked labels say of all of them; ``checked`` is the document of ``checked.json``."""
    found = checked["all"]
    unsure = "" if not found["num_unsure"] else f", {count(found['num_unsure'])} could not be told"
    number = found["num_checked"] + found["num_unsure"]
    rates = f"{percent(found['value'])} of all, 90% interval {percents(found['low'], found['high'])}"
    about = count(found["value"] * found["count"])
    lines = [
        f"Checked {what}s: {count(number)}, {count(found['num_wrong'])} of them wrong{unsure}.",
        f"Wrong {what}s: {about} of {count(found['count'])} ({rates}); at 90% confidence at most "
        f"{percent(found['at_most'])}.",
    ]
    firsts = []
    for item in checked["firsts"]:
        number = count(item["count"])
        name = f"{number} flagged" if item["name"] == "flagged" else f"{item['name']} ({number})"
        firsts.append(f"{percent(item['value'])} of the {name} [{percents(item['low'], item['high'])}]")
    return [*lines, f"Precision: {', '.join(firsts)}."] if firsts else lines


def competence_line(competence: Mapping[str, Any] | None, *, has_trained: bool = False) -> str | None:
    """Say how often the model is right on the hold-out, beside guessing; None where that was not measured.

    ``has_trained`` tells whether the hold-out was noticed to be trained on.
    """
    try:
        accuracy, number = float(competence["accuracy"]), int(competence["num_examples"])  # type: ignore[index]
        guessing = max(float(competence["chance"]), float(competence["majority"]))  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        return None
    if not number:
        return None
    said = f"The model is right on {percent(accuracy)} of {count(number, 'example')}"
    if has_trained:
        return f"{said} of its hold-out, on which it was trained: that tells nothing of how good it is."
    return f"{said} that it was not trained on; guessing is right on {percent(guessing)}."


def why_no_probabilities(info: Mapping[str, Any]) -> str:
    """Say why a run has no probabilities, as it noted itself."""
    for key in ("no_p_reason", "calibration_error"):
        if info.get(key):
            return str(info[key])
    if str(info.get("state") or "finished") != "finished":
        return "the run did not finish, and they are learnt when it ends"
    return "the run did not note why"


def kind_of_holdout(info: Mapping[str, Any]) -> str:
    """Whether the hold-out's labels were verified."""
    return "trusted" if info.get("trusted") else "as given"


def count_examples(sql: Sql) -> int:
    """How many examples a run is about; those that a training held out are others."""
    return int(sql("select count(*) as n from examples")["n"][0].as_py()) if columns_of(sql, "examples") else 0


def read_transition(info: Mapping[str, Any]) -> Floats:
    """Share of each true class (rows) that is labelled as each class, ``[C, C]``; empty where the run does not know."""
    try:
        found = np.array(info.get("transition") or np.zeros((0, 0)), dtype=np.float64)
    except (TypeError, ValueError):
        return np.zeros((0, 0))
    return found if found.ndim == 2 and found.shape[0] == found.shape[1] else np.zeros((0, 0))
