"""``sgoif report``: the page on which people look and decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgoif.cli.options import Images, Json, MaybeText, MaybeTexts, RunPath, how_many, parse_share
from sgoif.cli.output import clean, count, emit_json, print_lines, stderr_console
from sgoif.cli.scan import read_settings
from sgoif.errors import SgoifError

if TYPE_CHECKING:
    from sgoif.run import Run

_RUN_IMAGES = "run"  # in place of a folder: where the scan says that it read the pictures


def report(
    run: RunPath,
    out: Annotated[str, typer.Option(metavar="FILE.html", help="Where the page goes.")] = "report.html",
    images: Images = None,
    top: Annotated[int, how_many("examples")] = 500,
    pictures: Annotated[
        str, typer.Option(metavar="embed|link|none", help="Put them in, link to them, or not.")
    ] = "embed",
    decisions: Annotated[
        MaybeTexts, typer.Option(metavar="FILE.csv", help="Earlier decisions, not to be asked again; may be repeated.")
    ] = None,
    reviewers: Annotated[MaybeText, typer.Option(metavar="ANN,BO", help="One page each, with checks mixed in.")] = None,
    overlap: Annotated[str, typer.Option(metavar="SHARE", help="Of the cards that all reviewers get.")] = "5%",
    checks: Annotated[str, typer.Option(metavar="SHARE", help="Random examples among the cards.")] = "5%",
    blind: Annotated[bool, typer.Option("--blind", help="Hide what the run suggests.")] = False,
    title: Annotated[MaybeText, typer.Option(help="Of the page.")] = None,
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
    pages = opened.report(
        out,
        images=found,
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
        return emit_json("report", run=run, images=found, pages=written)
    lines = [
        f"{clean(page)} ({size / 1e6:.1f} MB): open it in any browser; it needs no server and no network."
        for page, size in sizes.items()
    ]
    if found is None:
        named = _find_scanned_data(opened)
        own = "" if named is None else f"--images run for those in {clean(named)}, where the scan read them; or "
        others = "--images FOLDER, a URL, Parquet, tar shards, or module:function"
        lines.append(f"Cards show ids only. For pictures: {own}{others}.")
    if people:
        given = f"{shared:.0%} of the cards go to all {count(len(people), 'reviewer')}; random examples and canaries"
        lines.append(f"{given} are mixed in unmarked. The answer key is in the run, not in the pages.")
    files = " ".join(f"decisions-{file_name_of(name)}.csv" for name in people) or "decisions.csv"
    lines.append("Decide there, download the decisions, and make a cleaned list of them:")
    print_lines([*lines, f"  sgoif apply {clean(run)} {files} --out manifest.parquet"])


def find_images(run: Run, images: str | None) -> str | None:
    """Where pictures are, as the user says: a place, or ``run`` for where the scan says that it read them.

    A run may come from someone else. What it names is read only when that is asked for, and only where it is a
    folder or a table on this machine.

    Raises:
        SgoifError: The run names no such place.
    """
    if images != _RUN_IMAGES:
        return images
    named = _find_scanned_data(run)
    if named is None:
        raise SgoifError(
            "--images run shows pictures from where a scan read them, and this run does not name such a place; pass a "
            "folder, a URL or module:function. A folder that is called run is ./run."
        )
    if "://" in named or not (Path(named).is_dir() or Path(named).suffix in (".parquet", ".arrow")):
        raise SgoifError(f"the run was made from {named!r}, which is no folder or table here; pass --images FOLDER.")
    stderr_console().print(f"Pictures come from {clean(named)}, as the run says.")
    return named


def _find_scanned_data(run: Run) -> str | None:
    """What a scan says that it read; None where the run is no local scan."""
    from sgoif.files.locations import place_of

    place = place_of(str(run.url))
    try:
        if not place.is_local or not place.exists("scan.yaml"):
            return None
        data = read_settings(place.full("scan.yaml")).get("data")
    except (SgoifError, OSError):
        return None
    return None if data is None else str(data)
