"""Scoring of stored pictures against the number of processes: decoding and forward alone, one process, Ray's actors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import scoring
from sgoif.scoring.engines import LocalEngine
from sgoif.scoring.pieces import list_pieces
from sgoif.scoring.score import score

__all__ = ["curve"]


def curve(examples: int, actors: Sequence[int], steps: int = 10) -> Iterator[dict[str, Any]]:
    """Yield the rates of each way over the same pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scoring.write_shards(folder / "data", examples)
        snapshot, make = scoring.train_and_keep(folder, steps)
        source = str(folder / "data")
        yield {"engine": "bare", **scoring.bare(make, list_pieces(source))}
        local = scoring.Measured(LocalEngine())
        run = score(snapshot, make, source, str(folder / "local"), engine=local, batch_size=scoring.BATCH)
        yield {"engine": "local", **local.rates()}
        for count in actors:
            out = folder / f"ray-{count}"
            found = scoring.on_ray(snapshot, make, source, out, run, with_kill=False, actors=count)
            yield {"engine": "ray", "actors": count, **found}
