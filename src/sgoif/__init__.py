"""Finds bad training data while the model trains.

Every training example gets an influence score online, with a confidence beside it. See the README for a start.
"""

from sgoif.api import Run, audit, load, split, watch, with_ids
from sgoif.overhead import BenchResult, bench
from sgoif.training.schedule import Plan

__all__ = ["BenchResult", "Plan", "Run", "__version__", "audit", "bench", "load", "split", "watch", "with_ids"]

__version__ = "0.1.0.dev0"
