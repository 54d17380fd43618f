"""Real finds for docs/gallery.md: ``python -m benchmarks.gallery`` scans two public sets as they are, 5-10 minutes.

The first findings of each scan were looked at, one by one, by the picture or the text alone, and the verdicts stand
here. The page shows those with a wrong label and counts the rest. A scan that finds others asks for their verdicts
first: nothing is shown that was not looked at.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import sgoif
from benchmarks.checks.sets import Pool, load_pool
from benchmarks.tables.rows import table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gallery.md"
PICTURES = PAGE.parent / "gallery" / "fashion.jpg"
SIDE, COLUMNS = 112, 5  # of the tiles, in pixels, and of the sheet

Verdict = Literal["wrong", "right", "arguable"]


def _verdicts(wrong: str, right: str, arguable: str) -> dict[str, Verdict]:
    lists: Mapping[Verdict, str] = {"wrong": wrong, "right": right, "arguable": arguable}
    return {id: verdict for verdict, ids in lists.items() for id in ids.split()}


LOOKED_AT: Mapping[str, Mapping[str, Verdict]] = {  # by position in the set
    "fashion": _verdicts(
        wrong="1074 6496 3356 9724 169 7389 9448 6281 7200 9472 5546 269 1963",
        right="3785 8943 9873",
        arguable="4226 9958 7232 2958 5996 8166 820 3761",
    ),
    "clinc150": _verdicts(
        wrong="2294 3032 1300 5635 11107 7706 7377 13940 5560 4723 14017 291",
        right="4603 5394 1019 6598 12250",
        arguable="6521 10167 13539 14919 1236 4912 4499 8973",
    ),
}


@dataclass(frozen=True, slots=True)
class Find:
    """One finding of a scan."""

    id: str
    given: str
    suggested: str
    p: float


def scan(name: str, pool: Pool) -> list[Find]:
    """The first findings in a set as published, as many as were looked at."""
    given = [pool.class_names[label] for label in pool.labels]
    columns = {"id": list(range(len(given))), "label": given}
    run = sgoif.scan(columns, label="label", id="id", features=np.asarray(pool.rows))
    rows: list[dict[str, Any]] = run.label_issues(top=len(LOOKED_AT[name])).to_pylist()
    return [Find(str(row["id"]), row["given_name"], row["suggested_name"], row["p_mislabeled"]) for row in rows]


def choose_wrong(finds: Sequence[Find], verdicts: Mapping[str, Verdict]) -> list[Find]:
    """The finds whose label is wrong.

    Raises:
        SystemExit: Some were not looked at.
    """
    unknown = [find for find in finds if find.id not in verdicts]
    if unknown:
        listed = "\n".join(f"  {find.id}: {find.given} -> {find.suggested}" for find in unknown)
        sys.exit(f"look at these and add their verdicts to {Path(__file__).name}:\n{listed}")
    return [find for find in finds if verdicts[find.id] == "wrong"]


def count_verdicts(finds: Sequence[Find], verdicts: Mapping[str, Verdict]) -> str:
    """Say how many of the finds are wrong, arguable and right."""
    counts = Counter(verdicts[find.id] for find in finds)
    wrong, arguable, right = (counts[verdict] for verdict in ("wrong", "arguable", "right"))
    return (
        f"Of the first {len(finds)} findings, {wrong} labels are wrong, {arguable} are arguable and {right} are right."
    )


def write_texts(finds: Sequence[Find], texts: Sequence[str]) -> str:
    """A Markdown table of texts."""
    rows = [[texts[int(find.id)].replace("|", "\\|"), f"`{find.given}`", f"`{find.suggested}`"] for find in finds]
    return table(("text", "given", "suggested"), rows)


def draw(finds: Sequence[Find], pixels: Any, path: Path) -> None:
    """Write one JPEG of all pictures, each with its given and suggested label."""
    from PIL import Image, ImageDraw

    width, height = SIDE + 12, SIDE + 44
    sheet = Image.new("RGB", (COLUMNS * width, -(-len(finds) // COLUMNS) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for place, find in enumerate(finds):
        x, y = place % COLUMNS * width + 6, place // COLUMNS * height + 6
        picture = Image.fromarray(np.array(pixels[int(find.id)])).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        sheet.paste(picture, (x, y))
        pen.text((x, y + SIDE + 3), find.given, fill="#57606a", font_size=14)
        pen.text((x, y + SIDE + 19), f"> {find.suggested}", fill="black", font_size=14)
    path.parent.mkdir(exist_ok=True)
    sheet.save(path, quality=85, optimize=True)


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with the parts between their markers."""
    for name, text in parts.items():
        place = re.compile(rf"(<!-- gallery {name} -->\n).*?(<!-- end -->)", re.S)
        page = place.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)  # type: ignore[misc]
    return page


def main() -> None:
    """Scan both sets, and write the pictures and the page."""
    parts = {}
    for name in LOOKED_AT:
        pool = load_pool(name)
        finds = scan(name, pool)
        wrong = choose_wrong(finds, LOOKED_AT[name])
        parts[f"{name}_count"] = count_verdicts(finds, LOOKED_AT[name])
        if pool.texts:
            parts[name] = write_texts(wrong, pool.texts)
        else:
            draw(wrong, pool.pixels, PICTURES)
    PAGE.write_text(fill(PAGE.read_text(), parts))


if __name__ == "__main__":
    main()
