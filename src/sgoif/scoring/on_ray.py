"""The operator on a Ray cluster: a dataset of pieces, mapped over a pool of actors, each with a model of its own.

Ray Data schedules, holds back what would not fit, starts an actor that died again and repeats its piece: those are its
defaults. A piece travels by its address; pictures never pass through the object store.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from sgoif.errors import SgoifError
from sgoif.scoring.operator import Gathered, Job, Operator, PieceDone
from sgoif.scoring.pieces import Piece

__all__ = ["RayEngine"]


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Actors on the cluster that ``RAY_ADDRESS`` names, else on this machine."""

    actors: int = 2
    cpus: float = 1.0  # of each actor
    gpus: float = 0.0

    def run(self, job: Job, pieces: Sequence[Piece]) -> Iterator[PieceDone]:
        for row in self._map(_Scoring, job, pieces):
            yield PieceDone(**row)

    def sample(self, job: Job, pieces: Sequence[Piece], count: int) -> Iterator[tuple[int, Gathered]]:
        # what does not fit is told here, and not by an actor that dies of it
        Operator(replace(job, loading=replace(job.loading, device="cpu")))
        for row in self._map(_Sampling, job, pieces, count):
            yield int(row["piece"]), pickle.loads(row["sampled"])  # of our own making, from an actor of this run

    def _map(self, actor: type[Any], job: Job, pieces: Sequence[Piece], *arguments: Any) -> Iterator[dict[str, Any]]:
        """One row per piece, as actors finish them."""
        ray = _start_ray()
        judged = None if job.judged is None else ray.put(job.judged)  # once per machine, not once per actor
        numbered = {piece.number: piece for piece in pieces}
        items = [{"piece": number} for number in numbered]
        pool = ray.data.ActorPoolStrategy(size=min(self.actors, len(items)), max_tasks_in_flight_per_actor=2)
        mapped = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            actor,
            batch_size=1,
            compute=pool,
            num_cpus=self.cpus,
            num_gpus=self.gpus or None,
            fn_constructor_args=(replace(job, judged=None), ray.put(numbered), judged, *arguments),
        )
        yield from mapped.iter_rows()


class _Actor:
    """A model of its own, for as many pieces as come."""

    def __init__(self, job: Job, pieces: Any, judged: Any) -> None:
        ray = import_module("ray")
        self.pieces: dict[int, Piece] = ray.get(pieces)
        self.operator = Operator(replace(job, judged=None if judged is None else ray.get(judged)))


class _Scoring(_Actor):
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [asdict(self.operator.score(self.pieces[int(number)])) for number in batch["piece"]]
        return {name: np.array([row[name] for row in done]) for name in done[0]}


class _Sampling(_Actor):
    def __init__(self, job: Job, pieces: Any, judged: Any, count: int) -> None:
        super().__init__(job, pieces, judged)
        self.count = count

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        drawn = [self.operator.sample(self.pieces[int(number)], self.count) for number in batch["piece"]]
        return {"piece": batch["piece"], "sampled": [pickle.dumps(item) for item in drawn]}


def _start_ray() -> Any:
    try:
        ray = import_module("ray")
        import_module("ray.data")
    except ImportError as error:
        raise SgoifError('the engine `ray` needs Ray: pip install "sgoif[ray]".') from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # progress is told piece by piece
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray
