"""``sgoif report``: the page on which people look and decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sgoif.cli.output import clean, count, emit_json, print_lines, stderr_console
from sgoif.cli.settings import read_settings
from sgoif.errors import SgoifError
from sgoif.files.locations import place_of
from sgoif.report.make import ReportSettings, file_name_of, make_report
from sgoif.run import Run, load

__all__ = ["RUN_IMAGES", "find_images", "scanned_data", "show_report"]

RUN_IMAGES = "run"  # in place of a folder: where the scan says that it read the pictures


def show_report(url: str, out: str, settings: ReportSettings, *, as_json: bool = False) -> None:
    """Write the pages of a run and say what to do with them."""
    run, reviewers = load(url), settings.reviewers
    found = find_images(run, settings.images)
    title = settings.title or f"Label review: {Path(url.rstrip('/')).name}"
    pages = make_report(run, out, replace(settings, images=found, title=title), run_url=run.url)
    sizes = [page.stat().st_size for page in pages]
    if as_json:
        written = [{"page": str(page), "bytes": size} for page, size in zip(pages, sizes)]
        emit_json({"command": "report", "format": 1, "run": url, "images": found, "pages": written})
        return
    for page, size in zip(pages, sizes):
        print_lines(
            [f"{clean(page)} ({size / 1e6:.1f} MB): open it in any browser; it needs no server and no network."]
        )
    if found is None:
        named = scanned_data(run)
        own = "" if named is None else f"--images run for those in {clean(named)}, where the scan read them; or "
        others = "--images FOLDER, a URL, Parquet, tar shards, or module:function"
        print_lines([f"Cards show ids only. For pictures: {own}{others}."])
    files = " ".join(f"decisions-{file_name_of(name)}.csv" for name in reviewers) if reviewers else "decisions.csv"
    lines = ["Decide there, download the decisions, and make a cleaned list of them:"]
    if reviewers:
        everybody = f"all {count(len(reviewers), 'reviewer')}"
        shared = f"{settings.overlap:.0%} of the cards go to {everybody}; random examples and canaries"
        lines.insert(0, f"{shared} are mixed in unmarked. The answer key is in the run, not in the pages.")
    print_lines([*lines, f"  sgoif apply {clean(url)} {files} --out manifest.parquet"])


def find_images(run: Run, images: str | None) -> str | None:
    """Where pictures are, as the user says: a place, or ``run`` for where the scan says that it read them.

    A run may come from someone else. What it names is read only when that is asked for, and only where it is a
    folder or a table on this machine.

    Raises:
        SgoifError: The run names no such place.
    """
    if images != RUN_IMAGES:
        return images
    named = scanned_data(run)
    if named is None:
        raise SgoifError(
            "--images run shows pictures from where a scan read them, and this run does not name such a place; pass a "
            "folder, a URL or module:function. A folder that is called run is ./run."
        )
    if "://" in named or not (Path(named).is_dir() or Path(named).suffix in (".parquet", ".arrow")):
        raise SgoifError(f"the run was made from {named!r}, which is no folder or table here; pass --images FOLDER.")
    stderr_console().print(f"Pictures come from {clean(named)}, as the run says.")
    return named


def scanned_data(run: Run) -> str | None:
    """What a scan says that it read; None where the run is no local scan."""
    place = place_of(str(run.url))
    try:
        if not place.is_local or not place.exists("scan.yaml"):
            return None
        data = read_settings(place.full("scan.yaml")).get("data")
    except (SgoifError, OSError):
        return None
    return None if data is None else str(data)
