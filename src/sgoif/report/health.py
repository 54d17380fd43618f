"""The tab "run health": can the numbers of this run be trusted, and what did they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgoif.doubts import doubts_of, has_trained_on_holdout
from sgoif.findings.suspects import columns_of, labels_of
from sgoif.report.figures import curve
from sgoif.report.findings import Figure, Findings, share
from sgoif.summary import competence_line, why_no_probabilities
from sgoif.types import Floats

__all__ = ["Sign", "health_figures", "health_signs"]

FINE, LOOK, UNKNOWN = "fine", "look", "not known"
_MOST_POINTS = 200  # of a curve


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of a run's health: what was seen, and whether it is as it should be."""

    name: str
    value: str
    verdict: str
    meaning: str


def health_signs(run: Findings) -> list[Sign]:
    """What the run's own record says: how it ended, cost, coverage, hold-out, calibration, faults."""
    signs = [_state(run.info), _coverage(run), _competence(run.info), _calibration(run.info)]
    if run.info.get("kind") != "scan":  # it trains no model of the user's, and holds nothing out
        signs += [_holdout(run.info), _overhead(run.info)]
    return [*signs, _faults(run.info), *_warnings(run)]


def health_figures(run: Findings) -> list[Figure]:
    """Residual and confidence of the anchors over the training, and how many visits could be judged."""
    found = []
    if columns_of(run.sql, "anchors"):
        found += _draw_anchors(run)
    if "confidence" in columns_of(run.sql, "visits"):
        found += _draw_gate(run)
    return found


def _state(info: Mapping[str, Any]) -> Sign:
    state = str(info.get("state") or "finished")
    ended = state == "finished"
    meaning = "It ended by itself." if ended else "It is running or was killed; what was written until then is shown."
    return Sign("Run", state, FINE if ended else LOOK, meaning)


def _coverage(run: Findings) -> Sign:
    present = columns_of(run.sql, "examples")
    judged = "count(p_mislabeled)" if "p_mislabeled" in present else "0"
    mean = "avg(n_visits)" if "n_visits" in present else "null"
    columns = f"count(*) as n, {judged} as judged, {mean} as visits"
    row = run.sql(f"select {columns} from {labels_of(run.sql)}").to_pylist()[0]
    part = row["judged"] / max(row["n"], 1)
    visits = "" if row["visits"] is None else f", {row['visits']:.1f} visits each"
    return Sign(
        "Coverage",
        f"{share(part)} of {row['n']:,} examples judged{visits}",
        FINE if part > 0.99 else LOOK,
        "An example that could not be judged has no probability; its row says why.",
    )


def _competence(info: Mapping[str, Any]) -> Sign:
    found = info.get("competence")
    has_trained = has_trained_on_holdout(info)
    said = competence_line(found if isinstance(found, dict) else None, has_trained=has_trained)
    if said is None or not isinstance(found, dict):
        return Sign("Accuracy", "unknown", UNKNOWN, "The run does not say how often its model is right.")
    is_fine = found.get("is_competent") and not has_trained
    return Sign("Accuracy", share(float(found["accuracy"])), FINE if is_fine else LOOK, said)


def _calibration(info: Mapping[str, Any]) -> Sign:
    if info.get("no_totals_reason"):
        return Sign("Calibration", "no totals", LOOK, f"{info['no_totals_reason']}.")
    if info.get("expected_errors") is None:
        return Sign("Calibration", "none", LOOK, f"{why_no_probabilities(info)}.")
    checked = info.get("checked")
    if not isinstance(checked, dict):
        meaning = "Nobody has compared the estimate with checked labels; sgoif verify draws a sample to check."
        return Sign("Calibration", "not checked", UNKNOWN, meaning)
    whole, rate = checked["all"], float(info["expected_errors"]) / max(float(checked["all"]["count"]), 1.0)
    is_inside = whole["low"] <= rate <= whole["high"]
    ends = f"{share(whole['low'])} to {share(whole['high'])}"
    meaning = f"The estimate is {share(rate)}; {whole['num_checked']} checked labels say {ends}."
    return Sign("Calibration", "agrees" if is_inside else "misses", FINE if is_inside else LOOK, meaning)


def _holdout(info: Mapping[str, Any]) -> Sign:
    held = info.get("held_out_per_class")
    if not isinstance(held, list) or not held:
        return Sign("Hold-out", "unknown", UNKNOWN, "The run does not say.")
    few = sum(number < 5 for number in held)
    kind = "verified" if info.get("trusted") else "labels as given"
    meaning = f"{few} classes have fewer than 5 held-out examples." if few else "Every class has at least 5 examples."
    advice = "" if info.get("trusted") else " Verifying 300 of them makes everything better: sgoif holdout."
    return Sign("Hold-out", f"{sum(held):,} examples, {kind}", LOOK if few else FINE, meaning + advice)


def _overhead(info: Mapping[str, Any]) -> Sign:
    spent = info.get("overhead")
    if not isinstance(spent, int | float):
        return Sign("Overhead", "not measured", UNKNOWN, "Only a watched training has a bare step to compare with.")
    changes = info.get("plan_changes") or []
    parts = info.get("overhead_by_part") or {}
    by = ", ".join(f"{name} {share(value)}" for name, value in parts.items())
    times = {1: "once", 2: "twice"}.get(len(changes), f"{len(changes)} times")
    eased = f" The plan was eased {times} to stay within its limit." if changes else ""
    return Sign("Overhead", f"{share(spent)} of the bare step", FINE if spent <= 0.1 else LOOK, f"Parts: {by}.{eased}")


def _faults(info: Mapping[str, Any]) -> Sign:
    causes = {**(info.get("faults") or {}), **(info.get("writing_faults") or {})}
    dropped = int(info.get("dropped_rows") or 0)
    if not causes and not dropped:
        return Sign("Faults", "none", FINE, "Nothing was lost.")
    said = "; ".join(f"{number} x {cause}" for cause, number in causes.items())
    lost = f" {dropped:,} rows could not be written." if dropped else ""
    return Sign("Faults", f"{sum(causes.values()):,}", LOOK, f"{said}.{lost}")


def _warnings(run: Findings) -> list[Sign]:
    number = int(run.sql("select count(*) as n from examples")["n"][0].as_py())
    return [
        Sign("Warning", "figures not to be trusted" if doubt.spoils else "read", LOOK, f"{doubt.text}.")
        for doubt in doubts_of(run.info, number)
    ]


def _draw_anchors(run: Findings) -> list[Figure]:
    rows = _read_points(
        run,
        "select refresh_step as step, median(residual) as residual, min(residual) as low, max(residual) as high, "
        "median(confidence) as confidence from anchors group by refresh_step order by refresh_step",
    )
    if not rows:
        return []
    step, title = rows["step"], "Relative residual of the anchors by training step"
    residual = curve(step, [("median residual", rows["residual"])], title=title, band=(rows["low"], rows["high"]))
    lines, title = [("median confidence", rows["confidence"])], "Confidence of the anchors by training step"
    confidence = curve(step, lines, title=title, top=1.0, percent=True)
    return [
        Figure("Residual of the anchors", residual, "By training step: how far each anchor's solution is from solved."),
        Figure("Confidence of the gate", confidence, "By training step: the weight that a visit's score is given."),
    ]


def _draw_gate(run: Findings) -> list[Figure]:
    rows = _read_points(
        run,
        "select epoch + 1 as epoch, avg(confidence) as weight, avg((confidence > 0.01)::integer) as open from visits "
        "group by epoch order by epoch",
    )
    if not rows:
        return []
    lines = [("visits judged", rows["open"]), ("mean weight", rows["weight"])]
    svg = curve(rows["epoch"], lines, title="Share of visits that were judged, by epoch", top=1.0, percent=True)
    return [Figure("What the gate let through", svg, "By epoch: the share of visits that count, and their weight.")]


def _read_points(run: Findings, query: str) -> dict[str, Floats]:
    """Columns of an answer, thinned to what a curve can show; none where there are fewer than two points."""
    table = run.sql(query)
    thin = np.unique(np.linspace(0, len(table) - 1, min(len(table), _MOST_POINTS)).astype(int))
    names = table.column_names if len(table) > 1 else ()
    return {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)[thin] for name in names}
