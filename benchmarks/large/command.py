"""``python -m benchmarks tier G``: its options, and what is done with them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.large.recipe import Recipe

_OVERRIDES = ("epochs", "width", "batch", "amp", "seeds")  # fields of a recipe that options replace


def add_options(parser: argparse.ArgumentParser) -> list[str]:
    """Add the options of tier G, and return their names; one that is not given is None."""
    group = parser.add_argument_group("tier G", "trains by the recipes in benchmarks/large/recipes, or prices them")
    added = [
        group.add_argument(
            "--dry-run", action="store_const", const=True, help="count operations, hours and memory, with no data"
        ),
        group.add_argument("--root", type=Path, help="folder of the datasets (default: SGOIF_LARGE)"),
        group.add_argument("--out", type=Path, help="folder of checkpoints, runs and results (default: runs/large)"),
        group.add_argument("--device", help="of the training (default: cuda)"),
        group.add_argument("--amp", choices=["bf16", "none"], help="precision, instead of the recipe's"),
        group.add_argument("--tflops", type=float, help="TFLOP/s that a GPU is assumed to sustain (default: 60)"),
        group.add_argument("--workers", type=int, help="processes that load pictures, for each rank (default: 8)"),
        group.add_argument("--stop-after", type=int, metavar="EPOCH", help="end after an epoch; the next call goes on"),
        group.add_argument("--examples", type=int, help="train on so many pictures alone"),
        group.add_argument("--epochs", type=int, help="instead of the recipe's"),
        group.add_argument("--width", type=int, help="channels of the first layer, instead of the recipe's"),
        group.add_argument("--seeds", type=int, nargs="+", help="instead of the recipe's"),
        group.add_argument("--batch", type=int, help="pictures of a step, instead of the recipe's"),
    ]
    return [action.dest for action in added]


def run(options: argparse.Namespace, only: Sequence[str]) -> int:
    """Price or train the recipes."""
    from benchmarks.large.recipe import RecipeError, read_recipes

    given = {name: value for name, value in vars(options).items() if name in _OVERRIDES and value is not None}
    try:
        recipes = [replace(recipe, **given) for recipe in read_recipes(only)]
    except RecipeError as error:
        raise SystemExit(str(error)) from error
    return price(recipes, options, is_whole=not only and not given) if options.dry_run else train(recipes, options)


def price(recipes: Sequence[Recipe], options: argparse.Namespace, *, is_whole: bool) -> int:
    """Print what the recipes would take; the log is written where all of them are priced as they are."""
    from benchmarks.large import dry_run
    from benchmarks.records import RESULTS

    tflops = options.tflops or dry_run.TFLOPS
    told = dry_run.describe([dry_run.estimate(recipe, tflops, options.examples) for recipe in recipes], tflops)
    print(told)
    if is_whole and not options.tflops and not options.examples:
        (RESULTS / dry_run.LOG).write_text(f"{told}\n")
    return 0


def train(recipes: Sequence[Recipe], options: argparse.Namespace) -> int:
    """Train by every recipe, noise and seed, one after another."""
    import torch.distributed as dist

    from benchmarks.large import train as training
    from benchmarks.large.datasets import large_root

    named = ("workers", "examples", "stop_after")
    chosen: dict[str, Any] = {name: vars(options)[name] for name in named if vars(options)[name] is not None}
    place = training.Place(
        root=large_root(options.root),
        out=options.out or Path("runs/large"),
        device=training.join_ranks(options.device or "cuda"),
        **chosen,
    )
    try:
        for recipe in recipes:
            for setting in recipe.noises:
                for seed in recipe.seeds:
                    found = training.train(recipe, setting, seed, place)
                    if found is not None:
                        print(f"{recipe.name}, noise {setting}, seed {seed}: {training.describe(found)}", flush=True)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0
