"""Figures of the benchmark pages, as plain SVG, drawn from the raw results by ``python -m benchmarks tables``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from benchmarks.drawing import Bars, Panel, draw_bars, draw_panels
from benchmarks.frozen_noise import CONFIDENT, aps, frozen_places
from benchmarks.label_noise_tables import best_free, is_judged, name_of, places, values
from benchmarks.overhead import MODEL_NAMES, cost_rows, time_ratio
from benchmarks.records import read_results
from benchmarks.tables.pages import FOLDER as PAGES
from benchmarks.tables.rows import Run, group_runs, latest
from benchmarks.trust.tables import NEW, compare_few_errors

FOLDER = PAGES / "figures"
SETTINGS = {"pair-20": "rust", "sym-40": "blue", "worst": "green"}
SIGNALS = {"harm": "rust", "worst": "blue", "probe_margin": "green", "margin": "grey"}
LABELS = {"right label": "blue", "wrong label": "rust"}
GATE = {"residual": "rust", "confidence": "blue"}
BELIEFS = {"what was true": "rust", "what was said": "grey"}
FROZEN = {"sgoif scan": "rust", "confident learning": "blue", "nearest neighbours": "grey"}
TRAINED = {"sgoif.watch": "rust", "best of loss, AUM and EL2N": "grey"}


def residual_and_confidence() -> str:
    """Relative residual and confidence against the epoch, one line per seed, trusted hold-out."""
    runs = [(name, run) for name in SETTINGS for run in _trusted(name)]
    panels = []
    for title, key in (("relative residual", "residual"), ("confidence", "confidence")):
        lines = [(name, run["report"][f"{key} by epoch"]) for name, run in runs]
        panels.append(Panel.by_epoch(f"{title} by epoch", 1.0, lines))
    return draw_panels(panels, SETTINGS)


def ap_by_epoch() -> str:
    """What the visits so far find, by signal: one line per seed, trusted hold-out."""
    panels = []
    for name in ("pair-20", "worst"):
        known = [run["report"]["epochs"] for run in _trusted(name) if "epochs" in run["report"]]
        lines = [(signal, found[signal]["accumulated ap"]) for signal in SIGNALS for found in known]
        panels.append(Panel.by_epoch(f"{name}: AP of all visits so far, by epoch", 100.0, lines))
    return draw_panels(panels, SIGNALS)


def concepts_of(key: str) -> str:
    """How loss or harm lies for right and for wrong labels, each side with an area of one."""
    found = _concepts()
    edges = np.array(found["edges"])
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    shares = [np.array(found[key][name.split()[0]], float) for name in LABELS]
    lines = [(name, list(zip(middles, share / share.sum()))) for name, share in zip(LABELS, shares)]
    ticks = [(value, f"{value:g}") for value in (-8, -4, 0, 4, 8)]
    top = max(y for _, line in lines for _, y in line)
    panel = Panel(f"{key}, in robust standard deviations", lines, ticks, top, has_ticks=False)
    return draw_panels([panel], LABELS)


def concepts_gate() -> str:
    """Residual and confidence against the step, mean over anchors."""
    found = _concepts()
    lines = [
        (name, [(10 * place, value) for place, value in enumerate(found[name]) if value is not None]) for name in GATE
    ]
    return draw_panels([Panel("by step", lines, [(step, str(step)) for step in range(0, 801, 200)], 1.0)], GATE)


def concepts_calibration() -> str:
    """Share of truly wrong labels among those that got about the same probability."""
    beliefs = _concepts()["beliefs"]
    lines = [
        ("what was said", [(0.0, 0.0), (1.0, 1.0)]),
        ("what was true", [(item["said"], item["true"]) for item in beliefs]),
    ]
    ticks = [(value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1)]
    return draw_panels([Panel("wrong labels, by p_mislabeled", lines, ticks, 1.0)], BELIEFS)


def frozen_ap() -> str:
    """AP on frozen features without a clean label, means over the seeds."""
    groups = []
    for (setting, holdout), runs in frozen_places():
        if holdout == "as-given":
            confident = max(float(np.mean(aps(runs, name))) for name in CONFIDENT if aps(runs, name))
            ours, near = (float(np.mean(aps(runs, name))) for name in ("p_mislabeled", "nearest neighbours"))
            groups.append((setting, list(zip(FROZEN, (ours, confident, near), strict=True))))
    title = "Average precision of finding wrong labels, 20,000 CIFAR-10 images, no clean labels"
    return draw_bars(Bars(title, groups, digits=1), FROZEN)


def training_ap() -> str:
    """AP of one watched training without a clean label, beside the best free signal of the same training."""
    groups = []
    for (dataset, setting, holdout), runs in places():
        if holdout == "as-given" and is_judged(runs):
            bars = (float(np.mean(values(runs, "p_mislabeled"))), float(np.mean(best_free(runs)[1])))
            groups.append((name_of(dataset, setting), list(zip(TRAINED, bars, strict=True))))
    return draw_bars(Bars("Average precision of one watched training, no clean labels", groups, digits=1), TRAINED)


def trust_ap() -> str:
    """Mean AP over the cells of few errors; a rival that not every cell has is left to the table."""
    whole = compare_few_errors(NEW)
    most = max(item.num_cells for item in whole)
    found = [item for item in whole if item.num_cells == most]
    bars = [("sgoif scan", found[0].ours, "rust"), *((item.rival, item.theirs, "grey") for item in found)]
    ranked = sorted(bars, key=lambda bar: -bar[1])
    title = f"Mean average precision at 3% wrong labels or less, {most} settings, same features"
    colours = {name: colour for name, _, colour in ranked}
    return draw_bars(Bars(title, [(name, [(name, value)]) for name, value, _ in ranked], digits=1), colours)


def cleaned_accuracy() -> str:
    """Test accuracy after cleaning without people, pair-20."""
    named = {
        ("none", ""): ("labels as given", "grey"),
        ("frozen confident", "relabel"): ("relabelled by confident learning", "blue"),
        ("frozen ours", "relabel"): ("relabelled by sgoif", "rust"),
        ("truth", ""): ("all labels true", "green"),
    }
    found = dict(group_runs(latest("cleaned.jsonl"), ("setting", "judge", "way")))
    groups = []
    for (judge, way), (name, _) in named.items():
        accuracy = 100 * float(np.mean([run["accuracy"] for run in found["pair-20", judge, way]]))
        groups.append((name, [(name, accuracy)]))
    chart = Bars("Test accuracy of a ResNet-9 trained on pair-20 images, %", groups, digits=1)
    return draw_bars(chart, dict(named.values()))


def overhead_ratio() -> str:
    """Time of a watched step in percent of a bare one."""
    groups = [
        (
            f"{MODEL_NAMES[run['model']]}, {run['classes']:,} classes, {run['precision']}",
            [("watched", 100 * (time_ratio(run) - 1))],
        )
        for run in cost_rows()
    ]
    chart = Bars("Time that watching adds to a training step, %", groups, last=25.0, digits=1)
    return draw_bars(chart, {"watched": "rust"})


FIGURES: Mapping[str, Callable[[], str]] = {
    "residual.svg": residual_and_confidence,
    "ap_by_epoch.svg": ap_by_epoch,
    "concepts_loss.svg": partial(concepts_of, "loss"),
    "concepts_harm.svg": partial(concepts_of, "harm"),
    "concepts_gate.svg": concepts_gate,
    "concepts_calibration.svg": concepts_calibration,
    "frozen_ap.svg": frozen_ap,
    "training_ap.svg": training_ap,
    "trust_ap.svg": trust_ap,
    "cleaned_accuracy.svg": cleaned_accuracy,
    "overhead_ratio.svg": overhead_ratio,
}


def _concepts() -> Run:
    """The last training of ``benchmarks.concepts``."""
    return read_results("concepts.jsonl")[-1]


def _trusted(setting: str) -> list[Run]:
    return dict(places()).get(("cifar10", setting, "trusted"), [])
