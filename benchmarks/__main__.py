"""The benchmarks.

list   names every experiment
run    measures one of them: all that its tables hold, or what the options choose
tier   runs every experiment: a small slice in minutes (S), or everything in hours (M);
       trains on the large datasets by their recipes, on a GPU (G)
tables rewrites the tables of the docs, and the figures, from the raw results
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.experiment import EXPERIMENTS, Experiment, add_options, cells, given, load, measure
from benchmarks.large import command as large

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name every experiment")
    command = commands.add_parser("run", add_help=False, help="measure one experiment; NAME --help lists its options")
    command.add_argument("name", choices=list(EXPERIMENTS), metavar="NAME")
    command.add_argument("rest", nargs=argparse.REMAINDER)
    tier = commands.add_parser("tier", help="run every experiment, or train on the large datasets")
    tier.add_argument("tier", choices=["S", "M", "G"])
    tier.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of experiments; of recipes in tier G")
    tier.add_argument("--jobs", type=int, default=2, help="experiments at a time, one core each (S and M)")
    of_large = large.add_options(tier)
    commands.add_parser("tables", help="rewrite the tables and figures of the docs")
    options = parser.parse_args(arguments)
    if options.command == "run":
        return run(load(options.name), options.rest)
    if options.command == "list":
        for name, entry in EXPERIMENTS.items():
            print(f"{name:20s}{entry.shows}")
        return 0
    if options.command == "tables":
        return write_tables()
    if options.tier == "G":
        return large.run(options, options.only)
    unknown = sorted(set(options.only) - EXPERIMENTS.keys())
    misplaced = [name for name in of_large if vars(options)[name] is not None]
    if unknown:
        tier.error(
            f"argument --only: no experiment {', '.join(unknown)} (choose from {', '.join(sorted(EXPERIMENTS))})"
        )
    if misplaced:
        tier.error(f"only tier G has the options {', '.join(misplaced)}")
    return run_tier(options.tier, options.only or list(EXPERIMENTS), options.jobs)


def run(experiment: Experiment, arguments: Sequence[str]) -> int:
    """Measure one experiment, a line for each measurement."""
    import torch

    from benchmarks import context

    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks run {experiment.name}",
        description=f"{sys.modules[experiment.run.__module__].__doc__}\nOptions of settings take lists: 1,2,3.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, experiment.settings)
    parser.add_argument("--small", action="store_true", help="the slice of tier S instead of all that the tables hold")
    parser.add_argument(
        "--save", nargs="?", const=experiment.results, metavar="FILE", help=f"append to {experiment.results}"
    )
    parser.add_argument("--again", action="store_true", help="measure also what that file holds already")
    parser.add_argument("--json", action="store_true", help="print whole rows")
    options = parser.parse_args(arguments)
    lacking = experiment.missing()
    if lacking:
        parser.error(f"needs {', '.join(lacking)} (pip install 'sgoif[bench]')")
    torch.set_num_threads(1)
    shared = {name: getattr(options, name) for name in ("device", "width", "amp") if name not in _fields(experiment)}
    context.use(**{name: value for name, value in shared.items() if value is not None})
    asked = cells(experiment, given(options, experiment.settings), small=options.small)
    varied = [name for name in _fields(experiment) if len({getattr(item, name) for item in asked}) > 1]
    rows = []
    for row in measure(experiment, asked, save=options.save, again=options.again):
        rows.append(row)
        print(json.dumps(row, default=str) if options.json else _line(experiment, row, varied), flush=True)
    if experiment.summarise is not None and rows:
        print(experiment.summarise(rows))
    return 0


def _fields(experiment: Experiment) -> list[str]:
    return [item.name for item in fields(experiment.settings)]


def _line(experiment: Experiment, row: dict[str, Any], varied: Sequence[str]) -> str:
    known = {**row["settings"], "seed": row["seed"]}
    cell = ", ".join(f"{name} {known[name]}" for name in varied if name in known)
    if experiment.describe is not None:
        told = experiment.describe(row)
    else:
        told = ", ".join(f"{name} {_short(value)}" for name, value in _measured(row).items())
    return f"{experiment.name}{', ' * bool(cell)}{cell}: {told}"


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    known = ("benchmark", "settings", "seed", "commit", "host", "time")
    return {name: value for name, value in row.items() if name not in known and not isinstance(value, dict | list)}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_tier(tier: str, names: Sequence[str], jobs: int) -> int:
    """Run experiments, each in a process of its own; those that fail are told, and what cannot run is passed over."""
    commands = {}
    for name in names:
        experiment = load(name)
        lacking = experiment.missing()
        if lacking or (tier == "S" and experiment.small is None):
            why = f"needs {', '.join(lacking)}" if lacking else "has no small slice"
            print(f"{name}: passed over, {why}")
        else:
            commands[name] = f"-m benchmarks run {name} {'--small' if tier == 'S' else '--save'}"
    is_sound = True
    with ThreadPoolExecutor(jobs) as pool:
        for name, (seconds, failed) in zip(commands, pool.map(_process, commands.values()), strict=True):
            print(f"{name}: {'failed' if failed else 'ran'} in {seconds:.0f} s", flush=True)
            if failed:
                print(failed)
                is_sound = False
    return 0 if is_sound else 1


def _process(command: str) -> tuple[float, str | None]:
    """Seconds that a command took, and the end of what it printed if it failed."""
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return time.perf_counter() - started, None if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def write_tables() -> int:
    """Rewrite the tables of every page, and the figures."""
    from benchmarks import figures
    from benchmarks.tables import pages

    wanted = {path: pages.rewrite(path.read_text()) for path in pages.pages()}
    wanted |= {figures.FOLDER / name: draw() for name, draw in figures.FIGURES.items()}
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path.name} was rewritten", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
