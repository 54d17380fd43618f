"""The tables of the benchmarks page, made from the raw results: ``python -m benchmarks.tables`` rewrites the page.

Each table stands between two marker lines of ``docs/benchmarks.md``; a test checks that the page says what the results
say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records import RESULTS, read_results

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_T = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # of a 95% interval, by number of seeds


def label_noise() -> str:
    """AP and P@1% of every signal on the reported splits, mean over seeds."""
    lines = ["| setting, hold-out | signal | AP | P@1% | AP, audit |", "|---|---|---|---|---|"]
    for (dataset, setting, holdout), runs in _grouped(
        _latest("label_noise_reported.jsonl"), ("dataset", "setting", "holdout")
    ):
        reports = [run["report"] for run in runs]
        name = setting if dataset == "cifar10" else f"CIFAR-100 {setting}"
        where = f"{name}, {holdout}"
        for signal in ("p_mislabeled", "worst", "harm", "probe_margin", "margin", "loss", "el2n"):
            rows = [_row(report, signal) for report in reports]
            if any(row is None for row in rows):
                continue
            audits = [report["audit"][signal]["ap"] for report in reports if signal in report["audit"]]
            late = f"{np.mean(audits):.1f}" if audits else ""
            ap, precision = ([row[key] for row in rows if row is not None] for key in ("ap", "p@1%"))
            lines.append(f"| {where} | `{signal}` | {_interval(ap)} | {_interval(precision)} | {late} |")
            where = ""
    return "\n".join(lines)


def calibration() -> str:
    """Promised and true precision of the top 1, 5 and 10%, one line per run."""
    lines = [
        "| setting, hold-out, seed | top 1% promised / true | top 5% | top 10% | errors expected / true |",
        "|---|---|---|---|---|",
    ]
    for run in _latest("label_noise_reported.jsonl"):
        report, settings = run["report"], run["settings"]
        if report["p_mislabeled"] is None:
            continue
        name = settings["setting"] if settings["dataset"] == "cifar10" else f"CIFAR-100 {settings['setting']}"
        cells = _promises(report["precision"])
        errors = f"{report['errors']['expected']:.0f} / {report['errors']['true']}"
        lines.append(f"| {name}, {settings['holdout']}, {run['seed']} | {' | '.join(cells)} | {errors} |")
    return "\n".join(lines)


def frozen_noise() -> str:
    """AP and P@1% on frozen features, ours above the rivals, mean over seeds."""
    lines = ["| setting, hold-out | method | AP | P@1% |", "|---|---|---|---|"]
    for (setting, holdout), runs in _grouped(_latest("frozen_noise.jsonl"), ("setting", "holdout")):
        where = f"{setting}, {holdout}"
        means = {name: np.mean([run["report"][name]["ap"] for run in runs]) for name in runs[0]["report"]}
        for method in sorted(means, key=lambda name: -means[name]):
            if method in ("worst", "harm", "probe_loss", "confident learning, margin"):
                continue
            rows = [run["report"][method] for run in runs]
            name = f"`{method}`" if "_" in method else method
            ap, precision = ([row[key] for row in rows] for key in ("ap", "p@1%"))
            lines.append(f"| {where} | {name} | {_interval(ap)} | {_interval(precision)} |")
            where = ""
    return "\n".join(lines)


def frozen_calibration() -> str:
    """Promised and true precision on frozen features, one line per run."""
    lines = [
        "| setting, hold-out, seed | top 1% promised / true | top 5% | top 10% | errors expected / true |",
        "|---|---|---|---|---|",
    ]
    for run in _latest("frozen_noise.jsonl"):
        errors = f"{run['errors']['expected']:.0f} / {run['errors']['true']}"
        lines.append(
            f"| {run['settings']['setting']}, {run['settings']['holdout']}, {run['seed']} | "
            f"{' | '.join(_promises(run['precision']))} | {errors} |"
        )
    return "\n".join(lines)


def _promises(precision: Sequence[Mapping[str, float]]) -> list[str]:
    return [
        f"{100 * item['value']:.0f} [{100 * item['low']:.0f}, {100 * item['high']:.0f}] / {100 * item['true']:.0f}"
        for item in precision
    ]


def scan() -> str:
    """True errors among the first 100 of ``sgoif scan``, one line per run."""
    lines = [
        "| path, seed | of the first 100 | by margin alone | by `worst` alone | AP | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for run in _latest("scan.jsonl"):
        found = [
            run["top_100"],
            run["margin_top_100"],
            run["worst_top_100"],
            f"{run['ap']:.1f}",
            f"{run['seconds']:.0f}",
        ]
        lines.append(f"| {run['settings']['path']}, {run['seed']} | {' | '.join(map(str, found))} |")
    return "\n".join(lines)


def verified() -> str:
    """AP by number of verified hold-out labels, mean over seeds."""
    lines = ["| setting | verified | AP | errors expected / true |", "|---|---|---|---|"]
    for (setting,), runs in _grouped(_latest("verified.jsonl"), ("setting",)):
        for items in zip(*(run["curve"] for run in runs), strict=True):
            expected, true = (np.mean([item[key] for item in items]) for key in ("expected_errors", "true_errors"))
            ap = _interval([item["ap"] for item in items])
            lines.append(f"| {setting} | {items[0]['verified']} | {ap} | {expected:.0f} / {true:.0f} |")
    return "\n".join(lines)


def controller() -> str:
    """AP of `harm` and `worst` under every gate, mean over seeds."""
    found = _latest("controller.jsonl", key=lambda run: (run["case"], run["seed"]))
    cases: dict[str, list[Any]] = {}
    for run in found:
        cases.setdefault(run["case"], []).append(run["ap"])
    gates = list(found[0]["ap"]) if found else []
    lines = ["| case | signal | " + " | ".join(gates) + " |", "|---|---|" + "---|" * len(gates)]
    for case, runs in cases.items():
        for signal in ("harm", "worst"):
            means = [np.mean([run[gate][signal] for run in runs]) for gate in gates]
            lines.append(f"| {case} | `{signal}` | " + " | ".join(f"{value:.1f}" for value in means) + " |")
    return "\n".join(lines)


def review() -> str:
    """Test accuracy after a review of so many examples, in three orders, mean over seeds and every seed's."""
    columns = {"ours": "our order", "aum": "AUM's order", "random": "random order"}
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in sorted(_latest("review.jsonl"), key=lambda run: run["seed"]):
        cells.setdefault((run["settings"]["order"], run["settings"]["budget"]), []).append(run)
    lines = ["| examples looked at | " + " | ".join(columns.values()) + " |", "|---|" + "---|" * len(columns)]
    for order, said in (("none", "none"), ("truth", "all labels true")):
        if (order, 0) in cells:
            same = " | ".join([_reviewed(cells[order, 0]), "", ""])
            lines.append(f"| {said} | {same} |")
    for budget in sorted({budget for order, budget in cells if order in columns}):
        row = [_reviewed(cells.get((order, budget), [])) for order in columns]
        lines.insert(len(lines) - (("truth", 0) in cells), f"| {budget:,} | {' | '.join(row)} |")
    return "\n".join(lines)


def _reviewed(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return ""
    accuracies = [100 * run["accuracy"] for run in runs]
    wrong = np.mean([run["wrong_labels"] for run in runs])
    each = f" ({', '.join(f'{value:.1f}' for value in accuracies)})" if len(runs) > 1 else ""
    return f"{np.mean(accuracies):.1f}{each}; {wrong:,.0f} wrong labels left"


def cleaned() -> str:
    """Test accuracy after cleaning without people, and the share of the gap to true labels that it recovers."""
    runs = _latest("cleaned.jsonl")
    columns = [where for (where,), _ in _grouped(runs, ("setting",))]
    found = dict(_grouped(runs, ("setting", "judge", "way")))
    lines = [f"| judged by | changed how | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    kinds = dict.fromkeys((run["settings"]["judge"], run["settings"]["way"]) for run in runs)
    for judge, way in kinds:
        cells = [_cleaned(found, where, judge, way) for where in columns]
        lines.append(f"| {_JUDGES.get(judge, judge)} | {way or '-'} | {' | '.join(cells)} |")
    return "\n".join(lines)


_JUDGES = {
    "none": "nobody (labels as given)",
    "truth": "all labels true",
    "frozen ours": "sgoif, heads on frozen features",
    "frozen confident": "confident learning, same features",
    "scratch ours": "sgoif, one watched training",
    "scratch confident": "confident learning, same network (4 trainings)",
}


def _cleaned(found: Mapping[tuple[str, ...], Sequence[Mapping[str, Any]]], where: str, judge: str, way: str) -> str:
    """Mean accuracy over the seeds, how much of the gap that is, and what became of the labels."""
    mine = {run["seed"]: run for run in found.get((where, judge, way), ())}
    if not mine:
        return ""
    accuracy = 100 * float(np.mean([run["accuracy"] for run in mine.values()]))
    wrong = np.mean([run["wrong_labels"] for run in mine.values()])
    if judge in ("none", "truth"):
        return f"{accuracy:.1f}; {wrong:,.0f} wrong"
    ends = [{run["seed"]: run["accuracy"] for run in found.get((where, end, ""), ())} for end in ("none", "truth")]
    both = [seed for seed in mine if seed in ends[0] and seed in ends[1]]
    shares = [(mine[seed]["accuracy"] - ends[0][seed]) / (ends[1][seed] - ends[0][seed]) for seed in both]
    share = f", {100 * float(np.mean(shares)):.0f}% of the gap" if shares else ""
    return f"{accuracy:.1f}{share}; {wrong:,.0f} wrong"


def rivals(file: str = "rivals.jsonl") -> str:
    """AP of every rival in every setting, mean over seeds, and what it costs beside the training.

    Raises:
        ValueError: The file mixes tiers, whose figures must not stand side by side.
    """
    runs = _latest(file)
    for (dataset,), same in _grouped(runs, ("dataset",)):
        sizes = {(run["settings"]["examples"], run["settings"]["epochs"]) for run in same}
        if len(sizes) > 1:
            raise ValueError(f"{file} mixes tiers on {dataset} (examples, epochs): {sorted(sizes)}; split the file")
    columns = [where for where, _ in _grouped(runs, ("dataset", "setting"))]
    names = [setting if dataset == "cifar10" else f"CIFAR-100 {setting}" for dataset, setting in columns]
    lines = [f"| uses | rival | {' | '.join(names)} | cost |", "|---|---|" + "---|" * (len(names) + 1)]
    for group, said in (("label-free", "given labels"), ("trusted", "trusted hold-out")):
        for (rival,), same in _grouped([run for run in runs if run["group"] == group], ("rival",)):
            found = dict(_grouped(same, ("dataset", "setting")))
            cells = [_interval([run["report"]["ap"] for run in found[key]]) if key in found else "" for key in columns]
            cost = np.mean([run["cost"] for run in same])
            lines.append(f"| {said} | {rival} | {' | '.join(cells)} | {cost:.2f} |")
            said = ""
    return "\n".join(lines)


# `rivals` joins when docs/benchmarks.md has a place for it
TABLES: Mapping[str, Callable[[], str]] = {
    "label_noise": label_noise,
    "calibration": calibration,
    "frozen_noise": frozen_noise,
    "frozen_calibration": frozen_calibration,
    "scan": scan,
    "verified": verified,
    "controller": controller,
    "review": review,
    "cleaned": cleaned,
}


def rewritten(page: str) -> str:
    """The page with every table between its markers made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no place for the table {name!r}: <!-- table {name} --> ... <!-- end -->")
        table = make()
        page = pattern.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)  # type: ignore[misc]
    return page


def _latest(name: str, key: Callable[[Any], Any] | None = None) -> list[dict[str, Any]]:
    """The last result of each setting and seed, in the order of first appearance; none where there is no file."""
    if not (RESULTS / name).is_file():
        return []
    make = key or (lambda run: (str(sorted(run["settings"].items())), run["seed"]))
    found: dict[Any, dict[str, Any]] = {}
    for run in read_results(name):
        found[make(run)] = run
    return list(found.values())


def _grouped(
    runs: Iterable[dict[str, Any]], names: Sequence[str]
) -> list[tuple[tuple[str, ...], list[dict[str, Any]]]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run["settings"][name] for name in names), []).append(run)
    return list(groups.items())


def _row(report: Mapping[str, Any], signal: str) -> Mapping[str, float] | None:
    if signal == "p_mislabeled":
        row: Mapping[str, float] | None = report["p_mislabeled"]
        return row
    gated: Mapping[str, float] = report["signals"][signal]["gate"]
    return gated


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}"
    half = _T.get(len(values), 1.96) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.1f} ± {half:.1f}"


def main() -> None:
    before = PAGE.read_text()
    after = rewritten(before)
    PAGE.write_text(after)
    print("the page was up to date" if before == after else "the page was rewritten", file=sys.stderr)


if __name__ == "__main__":
    main()
