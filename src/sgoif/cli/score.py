"""``sgoif score``: data and a snapshot in, a run and its worst labels out."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sgoif.cli.issues import show_rows
from sgoif.cli.models import load_model
from sgoif.cli.output import count, emit_json, print_lines
from sgoif.cli.run import Run, open_run
from sgoif.cli.scan import progress_bars
from sgoif.errors import SgoifError
from sgoif.usercode import import_named

if TYPE_CHECKING:
    from sgoif.scoring.engines import Engine

__all__ = ["ScoreSettings", "show_score"]

_SHOWN = 20
_COUNTS = ("num_scored", "num_copied", "num_passed_over", "num_quarantined", "num_pieces", "seconds")


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    """What is scored, by what."""

    snapshot: str
    model: str
    data: str
    out: str
    only_unjudged: str | None = None
    transform: str | None = None
    batch: int = 256
    decoders: int = 0
    device: str = "cpu"


def show_score(
    settings: ScoreSettings, *, engine: str, actors: int, cpus: float, gpus: float, as_json: bool = False
) -> None:
    """Score data, write the run and print what was found."""
    from sgoif.scoring.score import score

    chosen = _engine(engine, actors, cpus, gpus)
    transform = None
    if settings.transform is not None:
        transform = import_named(settings.transform, "--transform")
    with progress_bars() as bars:
        score(
            settings.snapshot,
            partial(load_model, settings.model, settings.device),
            settings.data,
            settings.out,
            only_unjudged=settings.only_unjudged,
            engine=chosen,
            transform=transform,
            batch_size=settings.batch,
            decoders=settings.decoders,
            device=settings.device,
            progress=bars,
        )
    run = open_run(settings.out)
    found, table = run.summary(), run.label_issues(top=_SHOWN)
    if as_json:
        counts = {name: run.info.get(name) for name in _COUNTS}
        document = {"run": settings.out, "settings": asdict(settings), "counts": counts, "summary": found.document()}
        emit_json({"command": "score", "format": 1, **document, "issues": table.to_pylist()})
        return
    print_lines([*found.lines(), _counted(run), ""])
    show_rows(run, table)
    shown = shlex.quote(settings.out)
    print_lines(["", f"The run is in {settings.out}. Next:", f"  sgoif issues {shown} --top 200 --csv review.csv"])


def _engine(name: str, actors: int, cpus: float, gpus: float) -> Engine:
    if name == "local":
        from sgoif.scoring.engines import LocalEngine

        return LocalEngine()
    if name == "ray":
        from sgoif.scoring.on_ray import RayEngine

        return RayEngine(actors, cpus, gpus)
    raise SgoifError(f"--engine is local or ray, got {name!r}.")


def _counted(run: Run) -> str:
    def number(name: str) -> int:
        value: Any = run.info.get(name)
        return value if isinstance(value, int) else 0

    parts = [f"{count(number('num_scored'), 'example')} scored now"]
    told = {
        "num_copied": "copied from the run that had judged them",
        "num_passed_over": "passed over, held out or judged before",
        "num_quarantined": "put aside, see quarantine/",
    }
    parts += [f"{count(number(name))} {text}" for name, text in told.items() if number(name)]
    return f"{', '.join(parts)}."
