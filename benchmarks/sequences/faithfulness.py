"""Do the scores of ``task="sequences"`` agree with retraining? The linear datamodeling score on tinyshakespeare.

A character-level GPT-2 is trained once on all sequences and scored; :mod:`benchmarks.sequences.retraining` trains it on
random halves. The queries are passages of a few consecutive sequences from the end of the text, each one a group of its
own. The LDS of a query is the rank correlation over halves between the summed scores of a half's members and the
query's mean loss per token after training on that half; its mean over the queries has an interval by bootstrap
over the halves.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sgoif
from benchmarks.agreement import ceiling, spearman
from benchmarks.exactness import Subsets
from benchmarks.experiment import Experiment
from benchmarks.sequences import bergson_rival
from benchmarks.sequences.attributors import Scores
from benchmarks.sequences.retraining import ADAPTED, members_of, read_bank
from benchmarks.sequences.scores import ADAPTER, LAYERS, Settings, keep_scores, query_places
from benchmarks.tables.rows import latest, table

_DRAWS = 1000  # of the bootstrap
_COLUMNS = (*LAYERS.values(), "all parameters", "no gradients")
_ADAPTER_COLUMNS = (ADAPTER, "no gradients")


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Score all sequences, then hold each score against the retrainings."""
    if settings.by == "kronfluence" and importlib.util.find_spec("kronfluence") is None:
        print("kronfluence is not installed: left out")
        return
    version: str | None = sgoif.__version__
    if settings.by == "kronfluence":
        version = importlib.metadata.version("kronfluence")
    elif settings.by == "bergson" and (version := bergson_rival.find_version()) is None:
        print("BERGSON_PYTHON names no interpreter that has bergson: left out")
        return
    scores, facts = keep_scores(settings)
    losses = read_bank(settings.recipe, settings.halves, settings.seeds)[:, :, query_places(settings)].mean(3)
    members = members_of(settings.recipe, settings.halves)
    shared = {"version": version, **facts, **describe_bank(losses)}
    for name, values in scores.items():
        yield {"method": name, **judge(members, losses, values), **shared}


def judge(members: NDArray[np.bool_], losses: NDArray[np.float64], scores: Scores) -> dict[str, Any]:
    """The LDS with its interval: against the mean over the seeds of the retrainings, and against each of them.

    Args:
        members: of the halves, ``[S, n]``.
        losses: of the queries by seed and half, ``[R, S, V]``.
        scores: harm by training sequence and query, ``[n, V]``; queries with a score that is not finite count as 0.
    """
    usable = np.isfinite(scores).all(0)
    values, truth = np.where(usable, scores, 0.0), losses.mean(0)
    found = Subsets(members, truth).lds(values)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_DRAWS):
        rows = rng.integers(len(members), size=len(members))
        draws.append(Subsets(members[rows], truth[rows]).lds(values).mean())
    low, high = np.percentile(draws, [2.5, 97.5])
    by_seed = [float(Subsets(members, part).lds(values).mean()) for part in losses]
    limits = {"low": float(low), "high": float(high)}
    return {"lds": float(found.mean()), **limits, "by_seed": by_seed, "failed": int((~usable).sum())}


def describe_bank(losses: NDArray[np.float64]) -> dict[str, Any]:
    """How far the retrainings differ, and what a perfect forecast could reach; unknown with one seed."""
    most = ceiling(losses, spearman) if len(losses) > 1 else None
    return {"ceiling": most, "retrained_loss": float(losses.mean()), "spread": float(losses.mean(0).std(0).mean())}


def describe(row: Mapping[str, Any]) -> str:
    reach = "" if row["ceiling"] is None else f", ceiling {row['ceiling']:.3f}"
    seeds = ", ".join(f"{value:.3f}" for value in row["by_seed"])
    return f"{row['method']}: LDS {row['lds']:.3f} ({row['low']:.3f} to {row['high']:.3f}; by seed {seeds}){reach}"


def make_table() -> str:
    """The LDS of every score by the layers that it is computed from, with half its interval."""
    return _tabulate(_COLUMNS, has_adapter=False)


def make_adapter_table() -> str:
    """The same where LoRA matrices are trained; these are all that has a gradient."""
    return _tabulate(_ADAPTER_COLUMNS, has_adapter=True)


def _tabulate(columns: Sequence[str], *, has_adapter: bool) -> str:
    found: dict[str, dict[str, str]] = {}
    for row in latest(
        EXPERIMENT.results, lambda run: (str(sorted(run["settings"].items())), run["seed"], run["method"])
    ):
        if ("adapter" in row["settings"]) != has_adapter:
            continue
        name, _, last = row["method"].rpartition(", ")
        if has_adapter and last == "all parameters":
            continue
        score, layers = (name, last) if last in columns else (row["method"], columns[-1])
        half = (row["high"] - row["low"]) / 2
        found.setdefault(score, {})[layers] = f"{row['lds']:.2f} ± {half:.2f}"
    rows = [[name, *(cells.get(column, "") for column in columns)] for name, cells in found.items()]
    return table(("score", *columns), rows)


_TINY = {"sequences": 16, "held": 8, "length": 16, "width": 32, "depth": 1, "epochs": 2, "queries": 2, "halves": 4}

EXPERIMENT = Experiment(
    name="sequence_faithfulness",
    settings=Settings,
    run=run,
    full=(
        {"by": "watch", "layers": ("block", "all", "head"), "seeds": [(0,)]},
        {"by": ("audit", "end", "checkpoints", "kronfluence", "bergson"), "seeds": [(0,)]},
        {**ADAPTED, "by": ("watch", "audit", "end", "checkpoints", "kronfluence"), "seeds": [(0,)]},
    ),
    small=({**_TINY, "by": "watch", "refresh": 2}, {**_TINY, "by": "audit"}, {**_TINY, "by": "end"}),
    needs=("transformers",),
    describe=describe,
    tables={"sequence_faithfulness": make_table, "sequence_faithfulness_lora": make_adapter_table},
    sparse=True,
)
