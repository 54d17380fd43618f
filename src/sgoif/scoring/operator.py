"""The operator that both engines run: read a piece, decode, forward, judge, write its part.

One bad record stops nothing: what cannot be decoded, has no class or makes the model fail is put aside with its reason,
in ``quarantine/`` beside the scores. A part is written last, so that a piece whose part is there is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.files.locations import place_of
from sgoif.gradients import quiet_eval
from sgoif.gradients.fingerprint import check_weights
from sgoif.gradients.models import default_forward
from sgoif.pictures.decode import decode, square
from sgoif.scoring.parts import write_part, write_quarantine
from sgoif.scoring.pieces import Piece
from sgoif.scoring.records import Record, class_of, read_records
from sgoif.snapshot import Snapshot, read_snapshot
from sgoif.store.parts import UNREACHABLE
from sgoif.store.schema import IdKind
from sgoif.types import Columns

__all__ = ["Gathered", "Job", "Loading", "Operator", "PieceDone"]

_Prepared = tuple[Record, int, Any]

_SIDE = 224  # of pictures for a model that does not say
_PATIENCE_S = (1.0, 5.0, 20.0)  # pauses before a piece that the network kept back is tried again


@dataclass(frozen=True, slots=True)
class Loading:
    """How records become inputs of the model, and where it runs."""

    transform: Callable[[Any], Tensor] | None = None  # a PIL picture to an input; the model's own, or a square crop
    batch_size: int = 256  # pictures at once
    decoders: int = 0  # threads that decode ahead; 0 decodes in between
    device: str = "cpu"  # where the model goes


@dataclass(frozen=True, slots=True)
class Job:
    """What a process needs in order to score pieces; it can be sent to another machine."""

    snapshot: str  # path or URL
    model: Callable[[], nn.Module] | nn.Module
    out: str
    id_kind: IdKind = "string"
    loading: Loading = Loading()
    judged: NDArray[np.int64] | None = None  # hashes of ids that need no scoring, ascending


@dataclass(slots=True)
class PieceDone:
    """How a piece went."""

    number: int
    num_scored: int = 0
    num_quarantined: int = 0
    num_passed_over: int = 0  # held out, or judged already
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the process, all threads
    error: str = ""  # why it could not be scored at all


@dataclass(slots=True)
class Gathered:
    """What records have given: signals of those that could be scored, reasons of those that could not."""

    ids: list[Any] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    signals: list[Columns] = field(default_factory=list)  # by batch
    quarantined: list[tuple[str, str]] = field(default_factory=list)  # id and reason
    num_passed_over: int = 0

    def columns(self) -> tuple[Columns, NDArray[np.int64]]:
        """Signals of all examples, and their labels."""
        names = self.signals[0] if self.signals else ()
        joined = {name: np.concatenate([part[name] for part in self.signals]) for name in names}
        return joined, np.asarray(self.labels, dtype=np.int64)

    def add(self, other: Gathered) -> None:
        """Take in what others have given."""
        self.ids += other.ids
        self.labels += other.labels
        self.signals += other.signals
        self.quarantined += other.quarantined
        self.num_passed_over += other.num_passed_over


class Operator:
    """A model and a snapshot, ready to score pieces.

    Raises:
        SgoifError: The model's weights are not those of the snapshot, or it has no such head.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.device = job, torch.device(job.loading.device)
        self.snapshot: Snapshot = read_snapshot(job.snapshot, self.device)
        self.model = (job.model if isinstance(job.model, nn.Module) else job.model()).to(self.device)
        about = self.snapshot.about
        check_weights(self.model, about.weights, about.step)
        if not about.is_cross_entropy:
            raise SgoifError("the snapshot's loss is not cross-entropy; score with Snapshot.score and its gradients.")
        self._head = self.model.get_submodule(about.head)
        self._transform = job.loading.transform or getattr(self.model, "transform", None)
        self._side = int(getattr(self.model, "input_size", _SIDE))
        self._forward = default_forward(self.model)
        self._seen: list[Tensor] = []

    def score(self, piece: Piece) -> PieceDone:
        """Score a piece and write its part; the network's whims are waited for, a broken file is not."""
        started, worked = time.perf_counter(), time.process_time()
        for pause in (*_PATIENCE_S, None):
            try:
                done = self._score(piece)
                done.seconds, done.cpu_seconds = time.perf_counter() - started, time.process_time() - worked
                return done
            except UNREACHABLE as error:
                if pause is None:
                    return PieceDone(piece.number, error=f"{type(error).__name__}: {error}"[:300])
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _score(self, piece: Piece) -> PieceDone:
        found = self._gather(piece, read_records(piece))
        signals, labels = found.columns()
        columns = self.snapshot.judged(signals, labels) if len(labels) else {}
        place = place_of(self.job.out)
        write_quarantine(place, piece.number, found.quarantined)
        write_part(place, piece.number, found.ids, labels, columns, self.job.id_kind)
        return PieceDone(piece.number, len(labels), len(found.quarantined), found.num_passed_over)

    def sample(self, piece: Piece, count: int) -> Gathered:
        """Look at some records of a piece, drawn by the hashes of their ids; nothing is written."""
        drawn: list[tuple[int, Record]] = []
        for batch in self._batches(piece, read_records(piece), Gathered()):
            hashes = hash_ids([str(record.id) for record in batch]).tolist()
            drawn = sorted([*drawn, *zip(hashes, batch)], key=lambda item: item[0])[:count]
        return self._gather(piece, (record for _, record in drawn))

    def _gather(self, piece: Piece, records: Iterator[Record]) -> Gathered:
        found, inference = Gathered(), torch.inference_mode()
        handle = self._head.register_forward_hook(lambda _, args, __: self._seen.append(args[0]))
        try:
            with self._pool() as pool, quiet_eval(self.model), inference:
                for batch in _decode_ahead(self._batches(piece, records, found), self._prepare, pool):
                    self._judge(batch, found)
        finally:
            handle.remove()
        return found

    def _batches(self, piece: Piece, records: Iterator[Record], found: Gathered) -> Iterator[list[Record]]:
        """Records in batches, without those that are passed over; a file that breaks off ends them."""
        while True:
            try:
                batch = list(islice(records, self.job.loading.batch_size))
            except UNREACHABLE:
                raise
            except Exception as error:  # a damaged file: readers raise whatever they like
                found.quarantined.append((piece.address, f"cannot be read on: {type(error).__name__}: {error}"[:300]))
                return
            if not batch:
                return
            wanted = self._select(batch)
            found.num_passed_over += len(batch) - len(wanted)
            yield wanted

    def _select(self, batch: list[Record]) -> list[Record]:
        known = [hashes for hashes in (self.snapshot.held_out, self.job.judged) if hashes is not None and len(hashes)]
        if not known:
            return batch
        ids = [str(record.id) for record in batch] if self.job.id_kind == "string" else [r.id for r in batch]
        own, is_known = hash_ids(np.asarray(ids)).view(np.int64), np.zeros(len(batch), bool)
        for hashes in known:
            place = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
            is_known |= hashes[place] == own
        return [record for record, skip in zip(batch, is_known, strict=True) if not skip]

    def _prepare(self, record: Record) -> _Prepared:
        """Class and input of a record, or the error in their place."""
        about = self.snapshot.about
        try:
            label = class_of(record.label, about.class_names, about.num_classes)
            if record.picture is None or not isinstance(record.id, int | str):
                raise SgoifError("it has no picture" if record.picture is None else "it has no id")
            if self.job.id_kind == "int" and not isinstance(record.id, int):
                raise SgoifError("its id is no integer, those of others are")
            picture = decode(record.picture)
            if self._transform is not None:
                return record, label, self._transform(picture)
            return record, label, torch.from_numpy(square(picture, self._side).copy())
        except Exception as error:  # the user's transform may raise anything
            return record, -1, error

    def _judge(self, batch: Sequence[_Prepared], found: Gathered) -> None:
        sound = [item for item in batch if not isinstance(item[2], Exception)]
        found.quarantined += [(str(item[0].id), _reason(item[2])) for item in batch if isinstance(item[2], Exception)]
        try:
            self._add(sound, found)
        except Exception:  # one of them: the others shall not be lost with it
            for item in sound:
                try:
                    self._add([item], found)
                except Exception as error:
                    found.quarantined.append((str(item[0].id), _reason(error)))

    def _add(self, batch: Sequence[_Prepared], found: Gathered) -> None:
        if not batch:
            return
        inputs, labels = self._stack([item[2] for item in batch]), torch.tensor([item[1] for item in batch])
        labels = labels.to(self.device)
        self._seen.clear()
        with self._precision():
            logits = self._forward(inputs)
        (features,) = self._seen
        features = features if features.dim() == 2 else features.flatten(2).mean(2)
        signals = self.snapshot.signals(features, logits, labels)
        is_sound = np.isfinite(signals["loss"]) & np.isfinite(signals["harm"])
        for (record, label, _), sound in zip(batch, is_sound.tolist(), strict=True):
            if sound:
                found.ids.append(record.id)
                found.labels.append(label)
            else:
                found.quarantined.append((str(record.id), "the model's output is not finite"))
        found.signals.append({name: column[is_sound] for name, column in signals.items()})

    def _stack(self, inputs: list[Tensor]) -> Tensor:
        """Inputs ``[B, …]``; plain pictures, which have their channels last, as float32 in [0, 1]."""
        stacked = torch.stack(inputs).to(self.device)
        return stacked if self._transform is not None else stacked.permute(0, 3, 1, 2).float().div_(255)

    def _pool(self) -> AbstractContextManager[Executor | None]:
        decoders = self.job.loading.decoders
        return ThreadPoolExecutor(decoders) if decoders > 0 else nullcontext()

    def _precision(self) -> AbstractContextManager[object]:
        name = self.snapshot.about.autocast
        if name is None or not torch.amp.is_autocast_available(self.device.type):
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, name))


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, SgoifError) else f"{type(error).__name__}: {error}"
    return (text.splitlines() or [""])[0][:300]


def _decode_ahead(
    batches: Iterator[list[Record]], prepare: Callable[[Record], _Prepared], pool: Executor | None
) -> Iterator[list[_Prepared]]:
    """Prepare batches; with a pool the next one while this one is judged."""
    if pool is None:
        for batch in batches:
            yield [prepare(record) for record in batch]
        return
    waiting: list[Future[_Prepared]] = []
    for batch in batches:
        coming = [pool.submit(prepare, record) for record in batch]
        yield [future.result() for future in waiting]
        waiting = coming
    yield [future.result() for future in waiting]
