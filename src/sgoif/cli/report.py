"""``sgoif report``: the page on which people look and decide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgoif.cli.models import find_here
from sgoif.cli.output import clean, count, emit_json, print_lines
from sgoif.cli.settings import read_settings
from sgoif.errors import SgoifError
from sgoif.report.make import file_name_of
from sgoif.run import Run, load
from sgoif.store.places import place_of

__all__ = ["find_images", "show_report"]


def show_report(
    url: str,
    *,
    out: str,
    images: str | None,
    top: int | None,
    pictures: Any,
    decisions: Sequence[str],
    reviewers: Sequence[str],
    overlap: float,
    checks: float,
    blind: bool,
    title: str | None,
    as_json: bool,
) -> None:
    """Write the pages of a run and say what to do with them."""
    run = load(url)
    found = find_images(run, images)
    pages = run.report(
        out,
        images=found,
        top=top,
        pictures=pictures,
        decisions=decisions,
        reviewers=reviewers,
        overlap=overlap,
        checks=checks,
        blind=blind,
        title=title or f"Label review: {Path(url.rstrip('/')).name}",
    )
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
        print_lines(
            ["Cards show ids only. For pictures: --images FOLDER, a URL, Parquet, tar shards, or module:function."]
        )
    files = " ".join(f"decisions-{file_name_of(name)}.csv" for name in reviewers) if reviewers else "decisions.csv"
    lines = ["Decide there, download the decisions, and make a cleaned list of them:"]
    if reviewers:
        shared = (
            f"{overlap:.0%} of the cards go to all {count(len(reviewers), 'reviewer')}; random examples and canaries"
        )
        lines.insert(0, f"{shared} are mixed in unmarked. The answer key is in the run, not in the pages.")
    print_lines([*lines, f"  sgoif apply {clean(url)} {files} --out manifest.parquet"])


def find_images(run: Run, images: str | None) -> str | None:
    """Where pictures are: as the user says, else where a scan read them, if that is still there."""
    if images is not None:
        find_here()
        return images
    place = place_of(str(run.url))
    if not place.exists("scan.yaml"):
        return None
    try:
        data = read_settings(f"{str(run.url).rstrip('/')}/scan.yaml").get("data") if place.is_local else None
    except SgoifError:
        return None
    return str(data) if data is not None and Path(str(data)).exists() else None
