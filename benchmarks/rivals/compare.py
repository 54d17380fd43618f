"""What others find in the same training: one score per example, and what it costs.

Every rival gets the data of a :class:`~benchmarks.rivals.case.Case` and the one bare training of it, and answers with
scores (high is suspicious) and the seconds it took beside that training. A rival whose library is not installed is
named and left out.

``cost`` counts what a method takes *beside* the training that its user runs anyway, in units of that training: 0 for
what falls out of the training itself, 3 for four trainings on three quarters of the data.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Experiment, option
from benchmarks.label_noise_tables import name_of
from benchmarks.metrics import detection_report, recall_at
from benchmarks.rivals import attribution, methods
from benchmarks.rivals.case import Bare, Case, Floats, Found, make_case, train_bare
from benchmarks.tables.rows import group_runs, interval, latest, table
from benchmarks.trainings import Setup


@dataclass(frozen=True, slots=True)
class Rival:
    """The names of its scores, how they are found, and the module that must be installed."""

    names: tuple[str, ...]
    find: Callable[[Case, Bare], dict[str, Found]]
    needs: str | None = None


RIVALS: Mapping[str, Rival] = {
    "trajectories": Rival(methods.TRAJECTORIES, methods.find_trajectories),
    "gold": Rival(methods.GOLD, methods.find_gold, "sklearn"),
    "tracin": Rival((attribution.TRACIN,), attribution.find_tracin, "captum"),
    "ekfac": Rival((attribution.EKFAC_HEAD,), attribution.find_ekfac, "kronfluence"),
    "trak": Rival(attribution.TRAK, attribution.find_trak, "trak"),
    "confident": Rival(tuple(methods.CONFIDENT), methods.find_confident, "cleanlab"),
    "ekfac-all": Rival(
        (attribution.EKFAC_ALL,), partial(attribution.find_ekfac, name=attribution.EKFAC_ALL), "kronfluence"
    ),
}
GROUPS = {name: group for group, rival in RIVALS.items() for name in rival.names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One score of one training; seed 0 is that of the development set."""

    setting: str = "pair-20"
    dataset: Literal["cifar10", "cifar100"] = "cifar10"
    split: Literal["development", "reported"] = "reported"
    examples: int = 20_000
    epochs: int = 10
    rival: str = option("AUM", GROUPS)
    seed: int = 1


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    group = GROUPS[settings.rival]
    if not is_installed(group):
        return
    setup = Setup(**{name: value for name, value in asdict(settings).items() if name != "rival"})
    case, bare = prepare(setup)
    found = find(group, setup)[settings.rival]
    yield {
        "group": found.group,
        "report": report_on(found.scores, case.wrong),
        "flags": None if found.flags is None else flag_report(found.flags, case.wrong),
        "seconds": found.seconds,
        "cost": found.seconds / bare.seconds,
        "bare_seconds": bare.seconds,
    }


@cache
def is_installed(group: str) -> bool:
    """Whether a rival can run here; said once where it cannot."""
    needed = RIVALS[group].needs
    if needed is not None and importlib.util.find_spec(needed) is None:
        print(f"{group} is left out: {needed} is not installed (pip install 'sgoif[bench]')")
        return False
    return True


@lru_cache(1)  # all rivals share one training, and the scores of one rival its work
def prepare(setup: Setup) -> tuple[Case, Bare]:
    case = make_case(setup)
    return case, train_bare(case)


@lru_cache(1)
def find(group: str, setup: Setup) -> dict[str, Found]:
    return RIVALS[group].find(*prepare(setup))


def report_on(scores: Floats, wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Summarise a ranking in percent; ``f1`` is that of flagging as many examples as there are errors."""
    # with so many flags precision, recall and F1 are one number
    return {**detection_report(scores, wrong), "f1": 100 * recall_at(scores, wrong, float(wrong.mean()))}


def flag_report(flags: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Summarise decisions in percent."""
    hits, flagged = int((flags & wrong).sum()), int(flags.sum())
    return {
        "flagged": flagged,
        "precision": 100 * hits / max(flagged, 1),
        "recall": 100 * hits / int(wrong.sum()),
        "f1": 200 * hits / (flagged + int(wrong.sum())),
    }


def describe(row: Mapping[str, Any]) -> str:
    report = row["report"]
    precision = f"P@1% {report['p@1%']:.1f} ± {report['p@1%_se']:.1f}"
    cost = f"cost {row['cost']:.2f} ({row['seconds']:.0f} s)"
    return f"AP {report['ap']:.1f}, AUROC {report['auroc']:.1f}, {precision}, F1 {report['f1']:.1f}, {cost}"


def rivals_table(file: str = "rivals.jsonl") -> str:
    """AP of every rival in every setting, mean over seeds, and what it costs beside the training.

    Raises:
        ValueError: The file mixes tiers, whose figures must not stand side by side.
    """
    runs = latest(file)
    for (dataset,), same in group_runs(runs, ("dataset",)):
        sizes = {(run["settings"]["examples"], run["settings"]["epochs"]) for run in same}
        if len(sizes) > 1:
            raise ValueError(f"{file} mixes tiers on {dataset} (examples, epochs): {sorted(sizes)}; split the file")
    columns = [where for where, _ in group_runs(runs, ("dataset", "setting"))]
    rows = []
    for group, said in (("label-free", "given labels"), ("trusted", "trusted hold-out")):
        for (rival,), same in group_runs([run for run in runs if run["group"] == group], ("rival",)):
            found = dict(group_runs(same, ("dataset", "setting")))
            cells = [interval([run["report"]["ap"] for run in found[key]]) if key in found else "" for key in columns]
            rows.append([said, rival, *cells, f"{np.mean([run['cost'] for run in same]):.2f}"])
            said = ""
    names = [name_of(dataset, setting) for dataset, setting in columns]
    return table(("uses", "rival", *names, "cost"), rows)


COMPARISON = Experiment(
    name="rivals",
    settings=Settings,
    run=run,
    describe=describe,
    tables={"rivals": rivals_table},
    full=[{"rival": list(GROUPS), "seed": [1, 2, 3]}, {"setting": "worst", "rival": list(GROUPS)}],
    small={
        "setting": "sym-40",
        "split": "development",
        "examples": 800,
        "epochs": 2,
        "rival": [name for name in GROUPS if name != attribution.EKFAC_ALL],  # too slow
        "seed": 0,
    },
)
