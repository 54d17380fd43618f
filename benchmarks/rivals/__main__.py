"""All rivals on one training per setting and seed: ``python -m benchmarks.rivals --setting pair-20 --seeds 1``.

One line per score in the file that ``--save`` names; rivals whose scores are there already are passed over, so that a
stopped run goes on where it was. A rival whose library is not installed is named and left out.

``cost`` counts what a method takes *beside* the training that its user runs anyway, in units of that training: 0 for
what falls out of the training itself, 3 for four trainings on three quarters of the data.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import noise
from benchmarks.label_noise import TIERS
from benchmarks.metrics import detection_report, recall_at
from benchmarks.records import RESULTS, append_result, read_results
from benchmarks.rivals import confident, ekfac, gold, tracin, trajectories, trak
from benchmarks.rivals.case import Bare, Case, Floats, Found, make_case, train_bare
from benchmarks.trainings import Setup

SETTINGS = ("setting", "dataset", "split", "examples", "epochs")


@dataclass(frozen=True, slots=True)
class Rival:
    """The names of its scores, how they are found, and the module that must be installed."""

    names: tuple[str, ...]
    find: Callable[[Case, Bare], dict[str, Found]]
    needs: str | None = None

    @property
    def is_installed(self) -> bool:
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


RIVALS: Mapping[str, Rival] = {
    "trajectories": Rival(trajectories.NAMES, trajectories.find),
    "gold": Rival(gold.NAMES, gold.find, "sklearn"),
    "tracin": Rival(tracin.NAMES, tracin.find, "captum"),
    "ekfac": Rival((ekfac.HEAD,), ekfac.find_head, "kronfluence"),
    "trak": Rival(trak.NAMES, trak.find, "trak"),
    "confident": Rival(confident.NAMES, confident.find, "cleanlab"),
    "ekfac-all": Rival((ekfac.ALL_LAYERS,), ekfac.find_all_layers, "kronfluence"),
}
TOO_SLOW = {"S": ("ekfac-all",)}  # for the time that a tier has


def measure(setup: Setup, rivals: Sequence[Rival]) -> Iterator[dict[str, Any]]:
    """Train once and ask every rival; one row per score, as soon as it is known."""
    torch.set_num_threads(1)
    case = make_case(setup)
    bare = train_bare(case)
    for rival in rivals:
        for name, found in rival.find(case, bare).items():
            yield {
                "benchmark": "rivals",
                "settings": {**settings_of(setup), "rival": name},
                "seed": setup.seed,
                "group": found.group,
                "report": report_on(found.scores, case.wrong),
                "flags": None if found.flags is None else flag_report(found.flags, case.wrong),
                "seconds": found.seconds,
                "cost": found.seconds / bare.seconds,
                "bare_seconds": bare.seconds,
            }


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


def settings_of(setup: Setup) -> dict[str, Any]:
    """What a row is known by, beside the rival's name and the seed."""
    return {name: getattr(setup, name) for name in SETTINGS}


def missing(setup: Setup, rivals: Sequence[Rival], file: str | None) -> list[Rival]:
    """Those rivals of which a score is not in the file yet."""
    rows = read_results(file) if file and (RESULTS / file).is_file() else []
    known = settings_of(setup)
    there = {
        row["settings"]["rival"]
        for row in rows
        if row["seed"] == setup.seed and {**row["settings"], **known} == row["settings"]
    }
    return [rival for rival in rivals if not there.issuperset(rival.names)]


def installed(names: Sequence[str]) -> list[Rival]:
    """The rivals of these names that can run here; the others are named."""
    for name in names:
        if not RIVALS[name].is_installed:
            print(f"{name} is left out: {RIVALS[name].needs} is not installed (pip install 'sgoif[bench]')")
    return [RIVALS[name] for name in names if RIVALS[name].is_installed]


def show(row: Mapping[str, Any]) -> None:
    report, flags = row["report"], row["flags"]
    print(
        f"  {row['settings']['rival']:38s} AP {report['ap']:5.1f}  AUROC {report['auroc']:5.1f}  "
        f"P@1% {report['p@1%']:5.1f} ± {report['p@1%_se']:.1f}  F1 {report['f1']:5.1f}  "
        f"cost {row['cost']:5.2f} ({row['seconds']:.0f} s)"
    )
    if flags:
        print(f"  {'':38s} flags: P {flags['precision']:.1f}, R {flags['recall']:.1f}, F1 {flags['f1']:.1f}")


def setups(options: argparse.Namespace) -> list[Setup]:
    """All trainings that the options ask for."""
    dataset = "cifar100" if options.setting.startswith("cifar100-") else "cifar10"
    sizes = TIERS[options.tier][dataset]
    return [
        Setup(
            setting=options.setting.removeprefix("cifar100-"),
            dataset=dataset,
            split="development" if seed == 0 and dataset == "cifar10" else "reported",
            examples=sizes["examples"],
            epochs=sizes["epochs"],
            seed=seed,
        )
        for seed in map(int, options.seeds.split(","))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    known = [*noise.settings("cifar10"), *(f"cifar100-{name}" for name in noise.settings("cifar100"))]
    parser.add_argument("--setting", default="pair-20", help=f"one of {', '.join(known)}")
    parser.add_argument("--tier", choices=sorted(TIERS), default="M")
    parser.add_argument("--seeds", default="1", help="comma-separated; 0 is the development set")
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), help="by default all that fit the tier")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args()
    fitting = [name for name in RIVALS if name not in TOO_SLOW.get(options.tier, ())]
    rivals = installed(options.rivals or fitting)
    for setup in setups(options):
        todo = missing(setup, rivals, options.save)
        print(f"{options.setting}, {setup.split} set, seed {setup.seed}: {len(todo)} rivals to ask", flush=True)
        for row in measure(setup, todo) if todo else ():
            show(row)
            if options.save:
                append_result(options.save, row)


if __name__ == "__main__":
    main()
