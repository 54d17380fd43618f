"""Ours, kronfluence's and dattri's attributions of the same models, held against the same retrainings.

A library that is not installed is named and left out. Seconds are processor seconds of the one thread that works.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import sgoif
from benchmarks.attributors.libraries import LIBRARIES
from benchmarks.attributors.subjects import CHECKPOINTS, Judge, Row, Scores, Subject, convex, mlp
from benchmarks.experiment import Experiment
from benchmarks.faithfulness import L2

SUBJECTS = {"convex": (convex, L2, 1), "mlp": (mlp, 0.0, CHECKPOINTS)}  # L2 term, number of checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One method."""

    part: Literal["attributors"] = "attributors"
    subject: Literal["convex", "mlp"] = "mlp"
    library: Literal["sgoif", "kronfluence", "dattri"] = "sgoif"
    method: str = "kfac"


@lru_cache(1)
def prepare(subject: str) -> tuple[Subject, Judge, Row]:
    return SUBJECTS[subject][0]()


def run(settings: Settings) -> Iterable[Mapping[str, Any]]:
    library = settings.library
    if not is_installed(library):
        return
    subject, judge, truth = prepare(settings.subject)
    _, l2, checkpoints = SUBJECTS[settings.subject]
    compute = LIBRARIES[library](l2, checkpoints)[settings.method]
    version = sgoif.__version__ if library == "sgoif" else importlib.metadata.version(library)
    yield {"report": {**measure(lambda: compute(subject), judge), "truth": truth, "version": version}}


@cache
def is_installed(library: str) -> bool:
    """Whether it can run here; said once where it cannot."""
    if importlib.util.find_spec(library) is None:
        print(f"{library} is not installed: left out")
        return False
    return True


def measure(compute: Callable[[], Scores], judge: Judge) -> Row:
    started = time.process_time()
    scores = compute()
    seconds = time.process_time() - started
    return {**judge(scores), "cpu_s": seconds}


def describe(row: Row) -> str:
    figures = {key: value for key, value in row["report"].items() if isinstance(value, float)}
    return ", ".join(f"{key} {value:.3f}" for key, value in figures.items())


ATTRIBUTORS = Experiment(
    name="attributors",
    settings=Settings,
    run=run,
    describe=describe,
    benchmark="faithfulness",
    file="faithfulness.jsonl",
    full=[
        {"subject": subject, "library": library, "method": list(LIBRARIES[library](l2, checkpoints))}
        for subject, (_, l2, checkpoints) in SUBJECTS.items()
        for library in LIBRARIES
    ],
)
