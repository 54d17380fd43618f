"""``sgoif report``: the page on which people look and decide."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.cli.options import Json, MaybeText, MaybeTexts, RankBy, RunPath, how_many, parse_share
from sgoif.cli.output import clean, count, emit_json, print_lines, stderr_console
from sgoif.cli.scan import read_settings
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.run import Run
    from sgoif.sources import Pictures
    from sgoif.sources.columns import ColumnNames

_RUN_IMAGES = "run"  # in place of a folder: where the scan says that it read the examples


def report(
    run: RunPath,
    out: Annotated[str, typer.Option(metavar="FILE.html", help="Write the page to this file.")] = "report.html",
    images: Annotated[
        MaybeText,
        typer.Option(
            "--images",
            "--show",
            metavar="DIR|FILE|URL|MODULE:FUNCTION",
            help="Read pictures, texts or rows here; `run` means where the scan read them.",
        ),
    ] = None,
    top: Annotated[int, how_many("examples")] = 500,
    pictures: Annotated[
        str,
        typer.Option(metavar="embed|link|none", help="Embed pictures in the page, link to them, or leave them out."),
    ] = "embed",
    decisions: Annotated[
        MaybeTexts,
        typer.Option(metavar="FILE", help="Read earlier decisions, which are not asked for again; may be repeated."),
    ] = None,
    reviewers: Annotated[
        MaybeText, typer.Option(metavar="ANN,BO", help="Write a page for each of these people, with checks mixed in.")
    ] = None,
    overlap: Annotated[
        str, typer.Option(metavar="SHARE", help="Give this share of the cards to all reviewers.")
    ] = "5%",
    checks: Annotated[str, typer.Option(metavar="SHARE", help="Mix in this share of random examples.")] = "5%",
    blind: Annotated[bool, typer.Option("--blind", help="Hide the suggestions of the run.")] = False,
    title: Annotated[MaybeText, typer.Option(metavar="TITLE", help="Give the page this title.")] = None,
    rank_by: RankBy = None,
    tokens: Annotated[
        MaybeText,
        typer.Option(metavar="FILE.jsonl", help="Show the harm of the tokens of sequences, read from this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a page to look at the findings and decide: one HTML file, no server."""
    from sgoif.report.make import file_name_of
    from sgoif.run import load

    shared = parse_share(overlap, "--overlap")
    people = [name.strip() for name in (reviewers or "").split(",") if name.strip()]
    drawn = parse_share(checks, "--checks")
    opened = load(run)
    found = find_images(opened, images)
    if opened.has_sequences:
        unfit = {"--reviewers": people, "--blind": blind, "--pictures": pictures != "embed"}
        _refuse(unfit, "goes with labels; this run judged sequences")
        options = {"by": rank_by or "suspicion", "tokens": tokens, "decisions": decisions or (), "title": title}
        return _report_sequences(opened, run, out, found, {"top": top, **options}, as_json=as_json)
    _refuse({"--rank-by": rank_by, "--tokens": tokens}, "goes with sequences of a language model")
    pages = opened.report(
        out,
        images=None if found is None else found.open(),
        top=top,
        pictures=pictures,
        decisions=decisions or (),
        reviewers=people,
        overlap=shared,
        checks=drawn,
        blind=blind,
        title=title or f"Label review: {Path(run.rstrip('/')).name}",
    )
    sizes = {page: page.stat().st_size for page in pages}
    if as_json:
        written = [{"page": str(page), "bytes": size} for page, size in sizes.items()]
        return emit_json("report", run=run, images=None if found is None else found.where, pages=written)
    lines = [
        f"{clean(page)} ({size / 1e6:.1f} MB): open it in any browser; it needs no server and no network."
        for page, size in sizes.items()
    ]
    if found is None:
        named = _find_scanned_data(opened)
        own = "" if named is None else f"--images run for those in {clean(named.where)}, where the scan read them; or "
        others = "--images FOLDER, a URL, a table, tar shards, or module:function"
        lines.append(f"Cards show ids only. For pictures, texts or rows: {own}{others}.")
    if people:
        given = f"{shared:.0%} of the cards go to all {count(len(people), 'reviewer')}; random examples and canaries"
        lines.append(f"{given} are mixed in unmarked. The answer key is in the run, not in the pages.")
    files = " ".join(f"decisions-{file_name_of(name)}.csv" for name in people) or "decisions.csv"
    lines.append("Decide there, download the decisions, and make a cleaned list of them:")
    print_lines([*lines, f"  sgoif apply {clean(run)} {files} --out manifest.parquet"])


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise SgoifError(f"{given[0]} {why}.")


def _report_sequences(
    run: Run, url: str, out: str, texts: FoundImages | None, options: dict[str, Any], *, as_json: bool
) -> None:
    """Write the page of a run about sequences and say how to go on."""
    title = options["title"] or f"Sequence review: {Path(url.rstrip('/')).name}"
    (page,) = run.report(out, images=None if texts is None else texts.where, **{**options, "title": title})
    size = page.stat().st_size
    if as_json:
        written = [{"page": str(page), "bytes": size}]
        return emit_json("report", run=url, images=None if texts is None else texts.where, pages=written)
    lines = [f"{clean(page)} ({size / 1e6:.1f} MB): open it in any browser; it needs no server and no network."]
    if texts is None:
        lines.append(
            "Cards show ids and numbers only. For texts: --show FILE, with the ids of the run in `id`, and `prompt` "
            "and `completion`, or `messages`, or `text`."
        )
    lines.append("Decide there, download the decisions, and make a cleaned list of them:")
    print_lines([*lines, f"  sgoif apply {clean(url)} decisions.jsonl --out manifest.parquet"])


@dataclass(frozen=True, slots=True)
class FoundImages:
    """Where examples are, and the columns by which a scan read them."""

    where: str
    names: ColumnNames | None = None

    def open(self) -> Pictures:
        """Open the place.

        Raises:
            SgoifError: It does not exist, or is nothing of the kind.
        """
        from sgoif.sources import find_pictures

        return find_pictures(self.where, self.names)


def open_images(run: Run, images: str | None) -> Pictures | None:
    """Find and open the place of examples; None where the user names none."""
    found = find_images(run, images)
    return None if found is None else found.open()


def find_images(run: Run, images: str | None) -> FoundImages | None:
    """Where examples are, as the user says: a place, or ``run`` for where the scan says that it read them.

    A run may come from someone else. What it names is read only when that is asked for, and only where it is a
    folder, a table or tar shards on this machine; code that it names is never run.

    Raises:
        SgoifError: The run names no such place.
    """
    if images is None:
        return None
    if images != _RUN_IMAGES:
        return FoundImages(images)
    found = _find_scanned_data(run)
    if found is None:
        raise SgoifError(
            "--images run shows examples from where a scan read them, and this run does not name such a place; pass a "
            "folder, a table, a URL or module:function. A folder that is called run is ./run."
        )
    if not _is_here(found.where):
        raise SgoifError(
            f"the run was made from {found.where!r}, which is no folder or table here; pass --images FOLDER."
        )
    stderr_console().print(f"Examples come from {clean(found.where)}, as the run says.")
    return found


def _is_here(named: str) -> bool:
    """Whether a place is a folder, a table or tar shards on this machine."""
    from sgoif.sources.shards import local_shards
    from sgoif.sources.tables import TABLE_SUFFIXES

    path = Path(named)
    if "://" in named:
        return False
    is_table = path.is_file() and path.suffix.lower() in (*TABLE_SUFFIXES, ".tar")
    return path.is_dir() or is_table or (named.endswith(".tar") and bool(local_shards(named)))


def _find_scanned_data(run: Run) -> FoundImages | None:
    """What a scan says that it read, and by which columns; None where the run is no local scan."""
    from sgoif.files.locations import place_of
    from sgoif.sources.columns import ColumnNames

    place = place_of(str(run.url))
    try:
        if not place.is_local or not place.exists("scan.yaml"):
            return None
        settings = read_settings(place.full("scan.yaml"))
    except (SgoifError, OSError):
        return None
    if settings.get("data") is None:
        return None
    named = {item.name: settings[item.name] for item in fields(ColumnNames) if settings.get(item.name)}
    if isinstance(named.get("label"), list):
        named["label"] = tuple(named["label"])
    return FoundImages(str(settings["data"]), ColumnNames(**named) if named else None)
