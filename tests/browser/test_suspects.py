"""The page on bad predictions: queries, their nearest examples, and suspects that a person drops."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from tests.browser.conftest import downloaded
from tests.cli.runs import answer


@pytest.fixture
def suspects():
    """The 15 examples of class 0, of which five stand with two queries."""
    return pa.table(
        {
            "id": [f"img/{i:03d}.png" for i in range(0, 60, 4)],
            "score": np.linspace(1, 0, 15),
            "is_suspect": [True] * 5 + [False] * 10,
            "given_label": [0] * 15,
            "effect": [0.0] * 15,
            "similarity": np.linspace(1, 0, 15),
            "near_queries": [[0], [0, 1], [1], [1], [0], [0], *([[]] * 9)],
        }
    )


QUERIES = np.random.default_rng(0).integers(0, 255, (2, 48, 48, 3), dtype=np.uint8)


def test_queries_neighbours_and_suspects_are_seen_and_dropped(run, suspects, pictures, tmp_path, open_page):
    page = open_page(run.report_suspects(suspects, QUERIES, tmp_path / "s.html", images=pictures))
    strips = page.locator(".asked .strip")
    assert strips.count() == 3  # two queries, and the class for comparison
    assert strips.nth(0).locator("figcaption").all_inner_texts() == [
        *("query 1", "img/000.png", "img/004.png", "img/016.png", "img/020.png"),
    ]
    assert strips.nth(0).locator(".suspect").count() == 3
    assert strips.nth(2).locator("figure").count() == 6 and strips.nth(2).locator(".suspect").count() == 0
    widths = page.locator(".asked img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(widths) == 5 + 4 + 6 and set(widths) == {48}
    assert page.locator(".card").count() == 5 and page.locator(".group h3").all_inner_texts() == ["cat"]
    page.locator(".card").first.click()
    opened = page.locator("#opened").inner_text()
    assert "100% of the way from its class to the queries" in opened and "probability" not in opened
    page.keyboard.press("Escape")
    for _ in range(5):
        page.keyboard.press("d")
    decisions = downloaded(page, tmp_path)
    answer("apply", run.url, decisions, "--out", tmp_path / "manifest.parquet")
    manifest = pq.read_table(tmp_path / "manifest.parquet")
    dropped = {row["id"] for row in manifest.to_pylist() if row["action"] == "drop"}
    assert dropped == {f"img/{i:03d}.png" for i in range(0, 20, 4)}


def test_without_pictures_ids_are_shown(run, suspects, tmp_path, open_page):
    page = open_page(run.report_suspects(suspects, QUERIES, tmp_path / "s.html"))
    assert page.locator(".asked img").count() == 2  # the queries themselves
    assert page.locator(".asked .missing").count() == 3 + 1 + 3 + 6


def test_nothing_suspect_is_no_page(run, suspects, tmp_path):
    innocent = suspects.set_column(2, "is_suspect", pa.array([False] * 15))
    with pytest.raises(SgoifError, match="nothing to show"):
        run.report_suspects(innocent, QUERIES, tmp_path / "s.html")
