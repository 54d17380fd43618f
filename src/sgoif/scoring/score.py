"""Scores data by a snapshot: adapts the probabilities to a sample, scores what is not done yet, and makes a run of it.

Stopped at any moment, the same call goes on where it was: the pieces, the adapted snapshot and the parts lie in the
output, and a piece whose part is there is passed over.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from sgoif.errors import SgoifError
from sgoif.files.locations import Place, place_of
from sgoif.run import Run, load
from sgoif.scoring.engines import Engine, LocalEngine
from sgoif.scoring.operator import Gathered, Job, Loading, PieceDone
from sgoif.scoring.parts import copy_judged, hash_judged, pieces_done, write_run_info
from sgoif.scoring.pieces import Piece, list_pieces
from sgoif.scoring.records import read_records
from sgoif.snapshot import read_snapshot, write_snapshot
from sgoif.store.info import find_info
from sgoif.store.parts import UNREACHABLE
from sgoif.store.reader import RunFiles
from sgoif.store.schema import IdKind

__all__ = ["score"]

_PLAN, _SNAPSHOT = "score.json", "snapshot.safetensors"
_SAMPLE = 10_000  # examples that probabilities are adapted to
_SAMPLED_PIECES = 64

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call began with, and a later one goes on with."""

    data: str
    snapshot: str  # hash of the file
    id_kind: IdKind
    pieces: tuple[Piece, ...]


def score(
    snapshot: str,
    model: Callable[[], nn.Module] | nn.Module,
    data: str,
    out: str,
    *,
    only_unjudged: str | None = None,
    engine: Engine | None = None,
    loading: Loading | None = None,
    progress: Progress = lambda stage, done, total: None,
    **keywords: Any,
) -> Run:
    """Judge every example of some data by a snapshot, in one pass.

    Args:
        snapshot: path or URL, from ``monitor.snapshot`` or ``sgoif.audit(snapshot=...)``.
        model: the model with the snapshot's weights, or a function that makes it; with several processes a function.
        data: what :func:`sgoif.scoring.pieces.list_pieces` takes.
        out: folder or URL of the run to write; one that this began and did not finish is gone on with.
        only_unjudged: a run; examples that it has judged are copied instead of scored.
        engine: who does the work; this process by default.
        loading: how pictures become inputs, and where the model runs. ``transform`` takes a PIL picture, 8-bit RGB and
            upright. By default it is the model's attribute ``transform``; where it has none, a square cut of
            ``input_size`` (else 224) pixels, float32 in [0, 1].
        progress: told what is done, how much of it and how much there is.
        keywords: fields of ``loading``: ``transform``, ``batch_size``, ``decoders``, ``device``.

    Raises:
        SgoifError: Something does not fit: the weights, the data, an output that holds another run.
    """
    place, started = place_of(out), time.perf_counter()
    judged = None if only_unjudged is None else RunFiles(only_unjudged)
    hashes = None if judged is None else hash_judged(judged)
    job = Job(snapshot, model, out, loading=replace(loading or Loading(), **keywords), judged=hashes)
    engine = engine or LocalEngine()
    plan = _read_plan(place, snapshot, data) or _begin(place, engine, job, data, judged, progress)
    job = replace(job, snapshot=f"{out.rstrip('/')}/{_SNAPSHOT}", id_kind=plan.id_kind)
    facts = _facts(job, plan, only_unjudged)
    if (find_info(place) or {}).get("state") != "finished":
        write_run_info(place, facts, plan.id_kind, is_finished=False)
    found = _run(engine, job, plan, place, progress)
    if judged is not None:
        facts["num_copied"] = copy_judged(judged, place)
    facts |= _count(place, found, plan, time.perf_counter() - started)
    failed = [item for item in found if item.error]
    write_run_info(place, facts, plan.id_kind, is_finished=not failed)
    if failed:
        raise SgoifError(
            f"{len(failed)} of {len(plan.pieces)} pieces could not be reached, the first because of {failed[0].error}. "
            "The others are scored; the same command again tries only these."
        )
    return load(out)


def _run(engine: Engine, job: Job, plan: _Plan, place: Place, progress: Progress) -> list[PieceDone]:
    done = pieces_done(place)
    left = [piece for piece in plan.pieces if piece.number not in done]
    progress("scoring", len(plan.pieces) - len(left), len(plan.pieces))
    found: list[PieceDone] = []
    if not left:
        return found
    for item in engine.run(job, left):
        found.append(item)
        progress("scoring", len(plan.pieces) - len(left) + len(found), len(plan.pieces))
    return found


def _begin(place: Place, engine: Engine, job: Job, data: str, judged: RunFiles | None, progress: Progress) -> _Plan:
    """List the pieces, look at their ids, adapt the snapshot to a sample, and write all of it down."""
    if find_info(place) is not None:
        raise SgoifError(f"'{place.url}' holds a run already; name another folder.")
    pieces = list_pieces(data)
    kind = _kind_of(pieces)
    if judged is not None and judged.id_kind("examples") != kind:
        raise SgoifError(
            f"ids are of type {kind} in '{data}' and {judged.id_kind('examples')} in the run, so none would be found "
            "there; give the data a column `id` with the ids of the training."
        )
    job = replace(job, id_kind=kind)
    sample = _draw_sample(engine, job, pieces, progress)
    if sample.quarantined and not sample.ids:
        raise SgoifError(
            f"none of the {len(sample.quarantined):,} records looked at could be scored, "
            f"{sample.quarantined[0][0][:80]!r} because of {sample.quarantined[0][1]}."
        )
    adapted = read_snapshot(job.snapshot)
    if sample.ids:
        adapted = adapted.adapted(*sample.columns())
    write_snapshot(adapted, f"{place.url.rstrip('/')}/{_SNAPSHOT}")
    plan = _Plan(data, _hash_file(job.snapshot), kind, tuple(pieces))
    document = {**asdict(plan), "format": 1, "pieces": [piece.document() for piece in pieces]}
    place.write(_PLAN, json.dumps(document).encode())
    return plan


def _draw_sample(engine: Engine, job: Job, pieces: Sequence[Piece], progress: Progress) -> Gathered:
    """Look at about ten thousand records, from pieces that lie evenly among all."""
    chosen = pieces[:: math.ceil(len(pieces) / _SAMPLED_PIECES)]
    found: dict[int, Gathered] = {}
    for number, gathered in engine.sample(job, chosen, math.ceil(_SAMPLE / len(chosen))):
        found[number] = gathered
        progress("adapting", len(found), len(chosen))
    joined = Gathered()
    for number in sorted(found):  # in one order, whoever was first
        joined.add(found[number])
    return joined


def _kind_of(pieces: Sequence[Piece]) -> IdKind:
    """Whether ids are integers or strings, by the first record that can be read."""
    trouble = "it holds no records"
    for piece in pieces:
        try:
            for record in read_records(piece):
                return "int" if isinstance(record.id, int) else "string"
        except UNREACHABLE:
            raise
        except Exception as error:  # a damaged file, or one with other columns
            trouble = str(error) if isinstance(error, SgoifError) else f"{type(error).__name__}: {error}"
    raise SgoifError(f"no record of the data can be read: {trouble}.")


def _read_plan(place: Place, snapshot: str, data: str) -> _Plan | None:
    if not place.exists(_PLAN):
        return None
    found = json.loads(place.read(_PLAN))
    if (found["data"], found["snapshot"]) != (data, _hash_file(snapshot)):
        raise SgoifError(
            f"'{place.url}' was begun with other data or another snapshot ('{found['data']}'); name another folder."
        )
    pieces = tuple(Piece.from_document(number, item) for number, item in enumerate(found["pieces"]))
    return _Plan(found["data"], found["snapshot"], found["id_kind"], pieces)


def _hash_file(url: str) -> str:
    folder, _, name = url.rpartition("/")
    return hashlib.blake2b(place_of(folder or ".").read(name), digest_size=16).hexdigest()


def _facts(job: Job, plan: _Plan, only_unjudged: str | None) -> dict[str, Any]:
    found = read_snapshot(job.snapshot)
    about = found.about
    return {
        "kind": "score",
        "class_names": list(about.class_names),
        "trusted": about.trusted,
        "head": about.head,
        "held_out_per_class": list(about.held_out_per_class),
        "competence": about.competence,
        "no_p_reason": about.no_p_reason,
        "transition": None if found.labels is None else found.labels.transition.tolist(),
        "snapshot": {"weights": about.weights, "step": about.step, "num_adapted": about.num_adapted},
        "only_unjudged": only_unjudged is not None,
    }


def _count(place: Place, found: Sequence[PieceDone], plan: _Plan, seconds: float) -> dict[str, Any]:
    """Numbers of this call and of all."""
    import pyarrow.parquet as pq

    return {
        "num_examples": sum(part.num_rows for part in RunFiles(place.url).parts("examples")),
        "num_pieces": len(plan.pieces),
        "num_scored": sum(item.num_scored for item in found),
        "num_quarantined": sum(pq.read_metadata(place.open(path)).num_rows for path in place.sizes("quarantine")),
        "num_passed_over": sum(item.num_passed_over for item in found),
        "seconds": seconds,
    }
