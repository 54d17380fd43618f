"""All attributors on one subject: ``python -m benchmarks.attributors --subject mlp --save faithfulness.jsonl``.

One line per method in the file that ``--save`` names; methods that are there already are passed over, so that a stopped
run goes on where it was. A library that is not installed is named and left out. Seconds are processor seconds of the
one thread that works.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.attributors.subject import Judge, Scores, convex, mlp
from benchmarks.records import append_result, is_recorded

SUBJECTS = {"convex": convex, "mlp": mlp}
LIBRARIES = ("sgoif", "kronfluence", "dattri")


def measure(compute: Callable[[], Scores], judge: Judge) -> dict[str, Any]:
    started = time.process_time()
    scores = compute()
    seconds = time.process_time() - started
    return {**judge(scores), "cpu_s": seconds}


def settings_of(subject: str, library: str, method: str) -> dict[str, Any]:
    return {"part": "attributors", "subject": subject, "library": library, "method": method}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=sorted(SUBJECTS), default="mlp")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--methods", nargs="+", metavar="WORD", help="only those whose name begins with one of these")
    parser.add_argument("--save", metavar="FILE", help="append to a JSONL file under benchmarks/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    subject, judge, truth = SUBJECTS[options.subject]()
    print(f"{subject.name}: {truth}", flush=True)
    for library in options.libraries:
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed: left out")
            continue
        version = importlib.import_module(library).__version__ if library == "sgoif" else _version(library)
        for method, compute in importlib.import_module(f"benchmarks.attributors.{library}").methods(subject).items():
            settings = settings_of(subject.name, library, method)
            if options.methods and not method.startswith(tuple(options.methods)):
                continue
            if options.save and is_recorded(options.save, settings, 0):
                continue
            report = {**measure(compute, judge), "truth": truth, "version": version}
            print(f"{library} {method}: {_short(report)}", flush=True)
            if options.save:
                append_result(
                    options.save, {"benchmark": "faithfulness", "settings": settings, "seed": 0, "report": report}
                )


def _version(library: str) -> str:
    return importlib.metadata.version(library)


def _short(report: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value:.3f}" for key, value in report.items() if isinstance(value, float))


if __name__ == "__main__":
    main()
